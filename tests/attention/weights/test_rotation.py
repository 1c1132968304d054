"""The stream has no privileged basis: rotating every weight that touches it leaves the function unchanged."""

import pytest
import torch

import unembed
from tests.families import build
from unembed.attention.weights.rotation import random_rotation, rotate_stream, rotated
from unembed.errors import InvalidInput

PROMPT = torch.tensor([[5, 9, 31, 5, 77, 12]])


@pytest.mark.parametrize("keep_mean", [False, True])
def test_rotations_are_orthogonal(keep_mean: bool) -> None:
    R = random_rotation(20, 3, keep_mean=keep_mean)
    torch.testing.assert_close(R @ R.T, torch.eye(20, dtype=torch.float64), rtol=0, atol=1e-12)
    ones = torch.ones(20, dtype=torch.float64)
    assert bool(torch.allclose(ones @ R, ones)) == keep_mean


@pytest.mark.parametrize("name", ["attention-only", "llama", "gpt2", "gpt_neox", "stablelm", "phi", "gemma"])
def test_turning_the_stream_leaves_the_function(name: str) -> None:
    model = build(name, torch.float64)
    if name in ("gpt2", "gemma"):  # untied, because the final norm's gain goes into the unembedding alone
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        model.config.tie_word_embeddings = False
    lm = unembed.load(model)
    before, entered = lm.run(PROMPT).logits.clone(), lm.run(PROMPT, "resid_post").at("resid_post", 0).clone()
    rotate_stream(lm, seed=5)
    after, turned = lm.run(PROMPT).logits, lm.run(PROMPT, "resid_post").at("resid_post", 0)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(turned.norm(dim=-1), entered.norm(dim=-1), rtol=1e-5, atol=1e-6)
    assert (turned - entered).norm() > 0.3 * entered.norm()


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma"])
def test_a_turned_copy_leaves_the_model_as_it_was(name: str) -> None:
    """Also where the unembedding is the embedding: the copy has one of each."""
    lm = unembed.load(build(name, torch.float64))
    assert lm.hf.config.tie_word_embeddings == (name != "llama")
    before = lm.weights.W_E.clone()
    turned = rotated(lm, seed=5)
    torch.testing.assert_close(lm.weights.W_E, before, rtol=0, atol=0)
    assert (turned.weights.W_E - before).norm() > 0.3 * before.norm()
    torch.testing.assert_close(turned.run(PROMPT).logits, lm.run(PROMPT).logits, rtol=1e-5, atol=1e-5)
    assert lm.hf.config.tie_word_embeddings == (name != "llama")


def test_a_tied_model_behind_a_gain_is_not_rotated_in_place() -> None:
    lm = unembed.load(build("gpt2"))
    with pytest.raises(InvalidInput, match=f"{lm.name}.*embedding and unembedding share one matrix"):
        rotate_stream(lm)


@pytest.mark.parametrize(("name", "why"), [("gemma2", "gain of its own"), ("bloom", "follow"), ("mixtral", "experts")])
def test_streams_that_cannot_be_rotated_are_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        rotate_stream(unembed.load(build(name)))

"""The stream: no privileged basis, virtual weights, subspaces, and what erases, against dense computation."""

import pytest
import scipy.linalg
import torch

import unembed
from tests.conftest import tiny
from tests.families import build
from unembed.attention.erasure import memory_management
from unembed.attention.geometry import subspaces, virtual_weights, writers_and_readers
from unembed.attention.rotation import random_rotation, rotate_stream
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
    assert rotate_stream(lm, seed=5) >= 2 * 4 + 2
    after, turned = lm.run(PROMPT).logits, lm.run(PROMPT, "resid_post").at("resid_post", 0)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(turned.norm(dim=-1), entered.norm(dim=-1), rtol=1e-5, atol=1e-6)
    assert (turned - entered).norm() > 0.3 * entered.norm()


@pytest.mark.parametrize(("name", "why"), [("gemma2", "branch"), ("bloom", "follow"), ("mixtral", "experts")])
def test_streams_that_cannot_be_turned_say_why(name: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        rotate_stream(unembed.load(build(name)))


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "llama", "attention-only", "gptj"])
def test_virtual_weights_equal_dense_products(name: str, centre: bool) -> None:
    lm = tiny(name, torch.float64)
    found = virtual_weights(lm, centre=centre)
    w = lm.weights
    layer_norms = name in ("gpt2", "gptj")

    def written(rows: torch.Tensor) -> torch.Tensor:
        return rows - rows.mean(dim=1, keepdim=True) if centre and layer_norms else rows

    out = written(w.W_O[0].flatten(0, 1))
    for which, matrix in (("Q 1", w.W_Q[1]), ("V 1", w.W_V[1])):
        into = matrix.transpose(0, 1).flatten(1)
        expected = (out @ into).norm() / (out.norm() * into.norm())
        torch.testing.assert_close(
            found.ratio[found.writers.index("attention 0"), found.readers.index(which)], expected
        )
    if name != "attention-only":
        gate = w.W_gate[0]
        into = w.W_in[0] if gate is None else gate
        expected = (out @ into).norm() / (out.norm() * into.norm())
        ratio = found.ratio[found.writers.index("attention 0"), found.readers.index("keys 0")]
        assert torch.isnan(ratio) if name == "gptj" else torch.isclose(ratio, expected)
        if gate is not None:
            expected = (out @ w.W_in[0]).norm() / (out.norm() * w.W_in[0].norm())
            torch.testing.assert_close(
                found.ratio[found.writers.index("attention 0"), found.readers.index("up 0")], expected
            )
    W_E, W_U = written(w.W_E), w.W_U - w.W_U.mean(dim=1, keepdim=True) if centre else w.W_U
    direct = (W_E @ W_U).norm() / (W_E.norm() * W_U.norm())
    torch.testing.assert_close(found.ratio[0, -1], direct)
    assert torch.isnan(found.ratio[found.writers.index("attention 1"), 0])


def test_subspaces_against_scipy() -> None:
    lm = tiny("gpt2", torch.float64)
    found = subspaces(lm, centre=False)
    writers, readers = writers_and_readers(lm, centre=False)
    out = lm.weights.W_O[0].flatten(0, 1)
    s = torch.linalg.svdvals(out).square()
    expected = (s.sum() ** 2 / s.square().sum()).item()
    i, j = found.labels.index("attention 0"), found.labels.index("Q 1")
    assert found.effective_rank[i].item() == pytest.approx(expected)
    bases = []
    for k in (i, j):
        gram = (writers + readers)[k].gram
        bases.append(torch.linalg.eigh(gram).eigenvectors[:, -round(found.effective_rank[k].item()) :].numpy())
    angles = scipy.linalg.subspace_angles(*bases)
    assert found.overlap[i, j].item() == pytest.approx((torch.tensor(angles).cos() ** 2).mean().item(), rel=1e-6)
    assert found.overlap[i, i].item() == pytest.approx(1.0)


def test_erasing_memories_are_found_and_seen_to_erase() -> None:
    model = build("gpt2", torch.float64)
    lm = unembed.load(model)
    with torch.no_grad():
        lm.weights.W_out[1][7] = -4 * lm.weights.W_in[1][:, 7]
    found = memory_management(lm, top=3)
    assert (found.memories[0].layer, found.memories[0].index) == (1, 7)
    assert found.memories[0].cosine == pytest.approx(-1.0)
    assert found.memories[0].before is None and found.n_memories == 2 * 192
    cosines = torch.nn.functional.cosine_similarity(lm.weights.W_in[1].T, lm.weights.W_out[1])
    assert found.counts[1] == int((cosines < -5 / 48**0.5).sum())
    ov = lm.weights.W_V[0][2] @ lm.weights.W_O[0][2]
    values = torch.linalg.eigvals(ov)
    expected = -values.real.clamp_max(0).sum() / values.abs().sum()
    assert found.heads[0, 2].item() == pytest.approx(expected.item(), rel=1e-6)


def test_verified_on_text_by_the_stream_before_and_after() -> None:
    lm = unembed.load()
    (one,) = memory_management(lm, top=1, verify=True, corpus=["the first of the months " * 30], max_tokens=64).memories
    assert one.before is not None and one.after is not None
    corpus = unembed.open_corpus(["the first of the months " * 30], segmentation="windows", window=256, overlap=0)
    batch = next(iter(corpus.batches(lm, tokens=1024)))
    run = lm.run(batch.tokens, ("resid_mid", "resid_post", "coefficients"), attention_mask=batch.mask.long())
    real = batch.mask.bool()
    v = lm.weights.W_out[one.layer][one.index]
    v = v / v.norm()
    m = run.at("coefficients", one.layer)[real][:, one.index]
    where = m.abs().topk(max(1, int(0.02 * len(m)))).indices
    for point, value in (("resid_mid", one.before), ("resid_post", one.after)):
        expected = (run.at(point, one.layer)[real] @ v)[where].mean().item()
        assert value == pytest.approx(expected, rel=1e-3, abs=1e-6)
    signs = (run.at("resid_mid", one.layer)[real] @ v)[where] * m[where]
    assert one.opposes == pytest.approx((signs < 0).double().mean().item())

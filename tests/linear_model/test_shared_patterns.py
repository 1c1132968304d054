"""Relevance through attention patterns: against the model's own graph, sums in every family, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.conftest import tiny
from tests.families import FAMILIES, build
from torch import Tensor, nn

import unembed
from unembed.circuit_graph.relevance import Aim, contribution, readout, relevance, seed
from unembed.errors import SumNotProved, Unsupported
from unembed.linear_model import linear_pass as room
from unembed.linear_model.linear_pass import linear_pass
from unembed.linear_model.linear_rules import linearized
from unembed.linear_model.pass_tensors import LinearPass, PartKind
from unembed.linear_model.shared_patterns import shared_pattern
from unembed.models.structure.structure import AttentionSite
from unembed.stream.run import run

TOKENS = torch.tensor([[5, 17, 23, 42, 11, 8, 60], [9, 3, 71, 20, 33, 50, 13]])
AIM = Aim([5, 7], [9, None])
UNREADABLE = "falcon-rw"
"""Its eager attention, which alone returns patterns, differs from the model's."""


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != UNREADABLE])
def test_sums_hold_at_every_cut(name: str) -> None:
    lm = tiny(name)
    made = linear_pass(lm, TOKENS, qk="shared")
    with torch.no_grad():
        assert torch.allclose(made.logits, lm.hf(TOKENS).logits, atol=1e-6)
    assert relevance(made, AIM).error < 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "gemma2", "qwen2_moe", "gptj", "olmo2", "qwen3", "bloom", "cohere-qk-norm"]
)
def test_sums_hold_in_half_precision(name: str, dtype: torch.dtype) -> None:
    found = relevance(linear_pass(tiny(name, dtype), TOKENS, qk="shared"), AIM)
    assert found.error < (5e-2 if dtype == torch.bfloat16 else 1e-2)


def _shares(mixer: AttentionSite, module: nn.Module, y: Tensor) -> Tensor:
    """Let the model's own attention pass derivatives: half to its values, a quarter to each of queries and keys."""
    found = torch.zeros_like(y)
    for which, share in (("q", 0.25), ("k", 0.25), ("v", 0.5)):
        if getattr(mixer.layout, which) is module:
            columns = mixer.split_heads(torch.arange(y.shape[-1]), which).flatten()
            found = found.index_copy(-1, columns, share * y[..., columns])
    return linearized(y, found)


@pytest.mark.parametrize(
    "name",
    ["attention-only", "gpt2", "gptj", "gpt_neox", "llama", "llama-biases", "mistral", "phi3", "bloom", "qwen2_moe"],
)
def test_queries_and_keys_receive_their_share_of_the_models_own_derivative(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no norm, cap or clip lies between projection and score, the rules are autograd's, times the shares."""
    lm = tiny(name)
    ours = relevance(linear_pass(lm, TOKENS, qk="shared"), AIM)
    monkeypatch.setattr(room, "_values_alone", _shares)
    theirs = _derivatives(linear_pass(lm, TOKENS))
    assert torch.allclose(ours.start, theirs["start"], atol=1e-5 * float(ours.start.abs().max()))
    for (kind, layer), gradient in ours.gradients.items():
        other = theirs[f"{kind} {layer}"]
        assert torch.allclose(gradient, other, atol=1e-5 * float(other.abs().max().clamp_min(1e-3)))


def _derivatives(made: LinearPass) -> dict[str, Tensor]:
    """The derivatives of a pass whose constants are not counted, so that no sum is proved."""
    places = {"start": made.start, **{f"{kind} {layer}": part.own for (kind, layer), part in made.parts.items()}}
    found = torch.autograd.grad([made.last], list(places.values()), [seed(made, readout(made, AIM).u)])
    return dict(zip(places, found, strict=True))


@pytest.mark.parametrize("name", ["gemma2", "qwen3", "olmo2", "olmo", "cohere-qk-norm", "smollm3"])
def test_a_query_and_a_key_each_receive_half_of_their_score(name: str) -> None:
    lm, generator = tiny(name), torch.Generator().manual_seed(0)
    seen = run(lm, TOKENS, ("q", "k", "scores", "pattern"))
    for layer in range(lm.n_layers):
        q, k = (seen.at(which, layer).clone().requires_grad_() for which in "qk")
        pattern = seen.at("pattern", layer)
        made = LinearPass(lm, TOKENS, False, {})
        out = shared_pattern(made, layer, q, k, pattern)
        assert torch.equal(out.detach(), pattern)
        g = torch.randn(out.shape, generator=generator)
        factors = [one.factor for one in made.biases if one.label == "patterns"]
        dq, dk, rest = torch.autograd.grad([out], [q, k, *factors], [g])
        of_scores = pattern * (g - (pattern * g).sum(-1, keepdim=True))  # the softmax's Jacobian, transposed
        scores = torch.where(pattern > 0, seen.at("scores", layer), 0.0)
        whole = float((scores * of_scores).sum())
        share_q, share_k = float((q.detach() * dq).sum()), float((k.detach() * dk).sum())
        assert share_q == pytest.approx(whole / 2, abs=2e-5 * max(1.0, abs(whole)))
        assert share_k == pytest.approx(whole / 2, abs=2e-5 * max(1.0, abs(whole)))
        assert share_q + share_k + float(rest.sum()) == pytest.approx(float((pattern * g).sum()), abs=1e-4)
        assert abs(whole) > 0.05


@pytest.mark.parametrize("name", ["falcon-rw"])
def test_patterns_that_cannot_be_had_are_refused(name: str) -> None:
    with pytest.raises(Unsupported, match="ALiBi twice"):
        linear_pass(tiny(name), TOKENS, qk="shared")


def test_scores_that_are_not_understood_are_refused() -> None:
    lm = unembed.load(build("llama"))
    block = lm.structure.blocks[1]
    site = replace(block.attention, scores=replace(block.attention.scores, missing="its scores are of another kind"))
    lm.structure = replace(lm.structure, blocks=(lm.structure.blocks[0], replace(block, mixer=site)))
    with pytest.raises(Unsupported, match=r"patterns of layer 1 .*: its scores are of another kind"):
        linear_pass(lm, TOKENS, qk="shared")


def test_scores_that_do_not_give_the_pattern_are_refused() -> None:
    lm = unembed.load(build("llama"))
    block = lm.structure.blocks[0]
    site = replace(block.attention, scores=replace(block.attention.scores, scale=0.9))
    lm.structure = replace(lm.structure, blocks=(replace(block, mixer=site), lm.structure.blocks[1]))
    with pytest.raises(SumNotProved, match="patterns of layer 0"):
        linear_pass(lm, TOKENS, qk="shared")


def test_memories_before_a_pattern_have_other_relevance_and_the_last_heads_the_same() -> None:
    lm = tiny("llama")
    made = [linear_pass(lm, TOKENS), linear_pass(lm, TOKENS, qk="shared")]
    found = [relevance(one, AIM) for one in made]

    def scores(kind: PartKind, layer: int) -> list[Tensor]:
        passes = zip(made, found, strict=True)
        return [contribution(one.parts[kind, layer].own, r.gradients[kind, layer], kind) for one, r in passes]

    heads, memories = scores("head", 1), scores("memory", 0)
    assert torch.allclose(heads[0], heads[1], atol=1e-6) and heads[0].abs().max() > 0.01
    assert (memories[0] - memories[1]).abs().max() > 0.01 * memories[0].abs().max()

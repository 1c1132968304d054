"""Relevance by the linear rules: sums at every cut in every family, and nodes against a model written by hand."""

from __future__ import annotations

import warnings

import pytest
import torch
from tests.circuit_graph.frozen_model import Frozen, Key
from tests.conftest import tiny
from tests.families import FAMILIES
from tests.models.decoder_classes import tiny_model

import unembed
from unembed.circuit_graph import circuit
from unembed.circuit_graph.relevance import Aim, contribution, readout, relevance
from unembed.errors import SumNotProved
from unembed.language_model import LanguageModel
from unembed.linear_model.linear_pass import linear_pass
from unembed.linear_model.linear_rules import linearized

TOKENS = torch.tensor([[5, 17, 23, 42, 11, 8, 60], [9, 3, 71, 20, 33, 50, 13]])
AIM = Aim([5, 7], [9, None])


@pytest.mark.parametrize("name", FAMILIES)
def test_relevance_adds_up_to_the_metric_at_every_cut(name: str) -> None:
    lm = tiny(name)
    made = linear_pass(lm, TOKENS)
    found = relevance(made, AIM)
    with torch.no_grad():
        logits = lm.hf(TOKENS).logits
    assert torch.equal(made.logits, logits) or torch.allclose(made.logits, logits, atol=1e-6)
    own = [float(logits[0, -1, 5] - logits[0, -1, 9]), float(logits[1, -1, 7])]
    assert found.metric.tolist() == pytest.approx(own, abs=1e-6)
    assert found.error < 1e-4
    assert made.unopened == []


@pytest.mark.parametrize(
    ("model_type", "error"),
    [
        ("gemma4_text", "values of an earlier layer, each head's divided by their size"),
        ("doge", "scores that depend on the values"),
        ("axk2", "a gated norm"),
        ("rwkv", "a gate of each channel after an FFN whose keys are not known"),
    ],
)
def test_relevance_adds_up_where_an_architecture_has(model_type: str, error: str) -> None:
    """Each of these once missed the metric (all families: `make families`)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of slow paths
        lm = unembed.load(tiny_model(model_type))
        graph = circuit(lm, TOKENS[0].tolist(), 5, 9, max_nodes=10)
        logits = lm.run(TOKENS[:1]).logits[0, -1]
    assert graph.metric == pytest.approx(float(logits[5] - logits[9]), abs=1e-6)
    assert graph.error < 1e-4, error


@pytest.mark.parametrize(
    "name", ["gpt2", "gpt_neox", "opt", "bloom", "falcon-40b", "falcon-rw", "phi", "mpt", "stablelm"]
)
def test_sums_are_exact_in_float64(name: str) -> None:
    assert relevance(linear_pass(tiny(name, torch.float64), TOKENS), AIM).error < 1e-12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "qwen2_moe", "gptj", "olmo2"])
def test_sums_hold_in_half_precision(name: str, dtype: torch.dtype) -> None:
    found = relevance(linear_pass(tiny(name, dtype), TOKENS), AIM)
    assert found.error < (5e-2 if dtype == torch.bfloat16 else 1e-2)


def _frozen(name: str) -> tuple[LanguageModel, Frozen]:
    lm = tiny(name, torch.float64)
    made = linear_pass(lm, TOKENS[:1])
    u = readout(made, Aim([5], [9])).u[0].double()
    return lm, Frozen(lm, TOKENS[:1], u, is_gated=name not in ("gpt2", "gpt_neox-sequential"))


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox-sequential", "llama-biases", "qwen2"])
def test_relevance_is_what_the_linear_model_loses_without_a_node(name: str) -> None:
    lm, frozen = _frozen(name)
    made = linear_pass(lm, TOKENS[:1])
    found = relevance(made, Aim([5], [9]))
    whole = frozen.metric()
    nodes: list[Key] = [("memory", 0, 3, 7), ("memory", 1, 6, 2), ("memory", 0, 6, 55), ("head", 0, 2, 1)]
    nodes += [("head", 1, 6, 3), ("head", 0, 6, 0), ("memory", 0, 0, 11)]
    sizes = []
    for kind, layer, position, index in nodes:
        part = made.parts[kind, layer]  # type: ignore[index]
        own = contribution(part.own, found.gradients[part.kind, layer], part.kind)[0, position, index]
        expected = whole - frozen.metric((kind, layer, position, index))
        # RMS norms and the patterns of others than GPT-2 come through float32, also in a float64 model.
        assert float(own) == pytest.approx(expected, abs=1e-11 if name == "gpt2" else 1e-6)
        sizes.append(abs(expected))
    for position in (0, 4, 6):
        own = (made.start.detach()[0, position] * found.start[0, position]).sum()
        assert float(own) == pytest.approx(whole - frozen.metric(("token", 0, position, 0)), abs=1e-6)
    assert max(sizes) > 1e-3


def test_a_part_that_is_left_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rule that lets too much through, the sum misses the metric, and nothing is returned."""
    monkeypatch.setattr("unembed.linear_model.linear_pass.half_rule", lambda m, gate, up: linearized(m, 2.0 * up))
    with pytest.raises(SumNotProved, match="relative error"):
        relevance(linear_pass(tiny("llama"), TOKENS), AIM)

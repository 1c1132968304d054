"""The test of a circuit: against runs with hooks written by hand, its ends, its controls, and on a behaviour."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.conftest import tiny

from unembed.circuit_graph import circuit
from unembed.circuit_graph.cases import read_cases
from unembed.circuit_graph.faithfulness import Bench, OfSize, Share
from unembed.circuit_graph.node_scores import Node
from unembed.errors import InvalidInput
from unembed.language_model import LanguageModel

PAIRS = [
    ([5, 17, 23, 42], [5, 17, 61, 42], 5, 9),
    ([7, 17, 30, 12], [7, 17, 61, 12], 8, 9),
    ([5, 2, 23, 42], [5, 2, 9, 42], 5, 3),
]


def difference(lm: LanguageModel, tokens: list[int], pair: tuple[int, int], **options: object) -> float:
    logits = lm.run(torch.tensor([tokens]), **options).logits[0, -1].double()  # type: ignore[arg-type]
    return float(logits[pair[0]] - logits[pair[1]])


@pytest.mark.parametrize("name", ["llama", "qwen2_moe"])
def test_memories_outside_the_circuit_have_the_mean_of_the_counterfactuals(name: str) -> None:
    lm = tiny(name)
    bench = Bench(lm, read_cases(lm, PAIRS), "mean", ("memory",))
    nodes = [Node("memory", 0, 0, 3), Node("memory", 1, 2, 7)]
    others = lm.run(torch.tensor([p[1] for p in PAIRS]), ("coefficients",))["coefficients"].mean(1)

    def only(m: torch.Tensor, layer: int) -> torch.Tensor:
        new = others[layer].expand_as(m).clone()
        for node in nodes:
            if node.layer == layer:
                new[:, 3 - node.back, node.index] = m[:, 3 - node.back, node.index]
        return new

    def without(m: torch.Tensor, layer: int) -> torch.Tensor:
        new = m.clone()
        for node in nodes:
            if node.layer == layer:
                new[:, 3 - node.back, node.index] = others[layer, 3 - node.back, node.index]
        return new

    for hook, own in ((only, bench.metric(nodes)), (without, bench.metric(nodes, without=True))):
        expected = [difference(lm, p[0], p[2:], hooks={"coefficients": hook}) for p in PAIRS]
        assert own.tolist() == pytest.approx(expected, abs=1e-5)


def test_heads_and_memories_are_put_into_the_counterfactual_and_taken_out_of_the_prompt() -> None:
    lm = tiny("llama")
    bench = Bench(lm, read_cases(lm, PAIRS[:1]), "counterfactual", ("head", "memory"))
    nodes = [Node("head", 0, 1, 2), Node("memory", 1, 0, 7), Node("head", 1, 0, 0)]
    prompt, other, *pair = PAIRS[0]
    points = {"head": "z", "memory": "coefficients"}
    runs = [lm.run(torch.tensor([t]), ("z", "coefficients")) for t in (prompt, other)]

    def hooks(source: int) -> dict[str, object]:
        def replaced(t: torch.Tensor, layer: int, kind: str) -> torch.Tensor:
            new = t.clone()
            for node in nodes:
                if (node.kind, node.layer) == (kind, layer):
                    at = (0, 3 - node.back, node.index)
                    new[at] = runs[source].at(points[kind], layer)[at]
            return new

        return {p: lambda t, layer, kind=kind: replaced(t, layer, kind) for kind, p in points.items()}

    put_in, taken_out = bench.metric(nodes)[0], bench.metric(nodes, without=True)[0]
    assert put_in == pytest.approx(difference(lm, other, tuple(pair), hooks=hooks(0)), abs=1e-5)
    assert taken_out == pytest.approx(difference(lm, prompt, tuple(pair), hooks=hooks(1)), abs=1e-5)
    assert bench.metric([])[0] == pytest.approx(difference(lm, other, tuple(pair)), abs=1e-5)


@pytest.mark.parametrize("kinds", ["memories", "all"])
@pytest.mark.parametrize("to", ["mean", "counterfactual", "zero"])
def test_a_circuit_of_everything_is_the_model(kinds: str, to: str) -> None:
    lm = tiny("gpt2")
    graph = circuit(lm, pairs=PAIRS, max_nodes=50)
    table = graph.test(sizes=(100_000,), kinds=kinds, to=to)  # type: ignore[arg-type]
    assert table["nodes"][0] == len(graph.ranking.nodes(("memory",) if kinds == "memories" else ("head", "memory")))
    assert table["faithfulness"][0] == pytest.approx(1.0, abs=1e-4)
    assert table["complement"][0] == pytest.approx(0.0, abs=1e-4)


def test_random_nodes_are_others_in_the_same_layers_at_the_same_positions() -> None:
    lm = tiny("llama")
    bench = Bench(lm, read_cases(lm, PAIRS), "zero", ("head", "memory"))
    nodes = [Node("memory", 0, 0, i) for i in range(10)] + [Node("memory", 1, 3, 4), Node("head", 1, 0, 2)]
    drawn = bench.random_nodes(nodes, np.random.default_rng(0))
    assert len(set(drawn)) == len(nodes) and not set(drawn) & set(nodes)
    assert sorted((n.kind, n.layer, n.back) for n in drawn) == sorted((n.kind, n.layer, n.back) for n in nodes)


def test_a_circuit_that_random_nodes_match_is_marked() -> None:
    def row(keeps: float, left: float) -> OfSize:
        around = Share(keeps, keeps - 0.1, keeps + 0.1)
        return OfSize(9, around, Share(left, left - 0.1, left + 0.1), Share(0.1, 0.0, 0.2), Share(0.9, 0.8, 1.0))

    assert row(0.15, 0.85).is_matched
    assert not row(0.9, 0.85).is_matched and not row(0.15, 0.3).is_matched
    lm = tiny("llama")
    table = circuit(lm, pairs=PAIRS, max_nodes=10).test(sizes=(1, 40))
    assert table.column_names[-1] == "random_does_as_well"


def test_baselines_that_need_a_counterfactual_are_refused_without_one() -> None:
    graph = circuit(tiny("llama"), PAIRS[0][0], 5, 9, max_nodes=5)
    with pytest.raises(InvalidInput, match="no counterfactuals"):
        graph.test(to="mean")
    with pytest.raises(InvalidInput, match="not one of"):
        graph.test(to="other")  # type: ignore[arg-type]
    assert graph.test(sizes=(3,), to="zero")["faithfulness_low"] == [None]

"""Rankings by simpler scores, each against the score computed by hand from captures and a backward pass."""

from __future__ import annotations

import pytest
import torch
from tests.conftest import tiny

from unembed.circuit_graph import circuit
from unembed.circuit_graph.cases import read_cases
from unembed.circuit_graph.node_scores import Node
from unembed.circuit_graph.other_rankings import other_ranking
from unembed.errors import InvalidInput
from unembed.names import RankedBy

PAIRS = [([5, 17, 23, 42], [5, 17, 61, 42], 5, 9), ([7, 17, 30, 12], [7, 17, 61, 12], 8, 9)]


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2_moe"])
@pytest.mark.parametrize("by", ["gradient", "difference", "coefficient"])
def test_nodes_are_ranked_by_their_score(name: str, by: RankedBy) -> None:
    lm = tiny(name)
    order = other_ranking(lm, read_cases(lm, PAIRS), by, ("head", "memory"), 10)
    sums: dict[str, torch.Tensor] = {}
    for prompt, other, token, against in PAIRS:
        own = lm.run(torch.tensor([prompt]), ("z", "coefficients"), grad=True)
        new = lm.run(torch.tensor([other]), ("z", "coefficients"))
        metric = own.logits[0, -1, token] - own.logits[0, -1, against]
        for point in ("z", "coefficients"):
            a, d = own[point][:, 0].detach(), (own[point] - new[point])[:, 0].detach()
            if by == "gradient":
                score = d * own.gradient(point, metric)[:, 0]
                score = score.sum(-1) if point == "z" else score
            else:
                score = a if by == "coefficient" else d
                score = score.norm(dim=-1) if point == "z" else score.abs()
            sums[point] = sums.get(point, 0) + score
    expected = []
    for point, kind in (("z", "head"), ("coefficients", "memory")):
        _, length, width = sums[point].shape
        for flat, score in enumerate(sums[point].flatten().abs().tolist()):
            place = Node(kind, flat // (length * width), length - 1 - flat // width % length, flat % width)
            expected.append((score, place))
    expected.sort(key=lambda one: -one[0])
    assert set(order[:8]) == {node for _, node in expected[:8]}
    assert order[0] == expected[0][1]


def test_without_counterfactuals_a_change_is_that_from_zero() -> None:
    lm = tiny("llama")
    cases = read_cases(lm, [(PAIRS[0][0], None, 5, 9)])
    by = [other_ranking(lm, cases, one, ("memory",), 5) for one in ("difference", "coefficient")]
    assert by[0] == by[1] and all(node.kind == "memory" for node in by[0])


def test_a_graph_compares_the_orders_on_the_same_pairs() -> None:
    graph = circuit(tiny("llama"), pairs=PAIRS, max_nodes=5)
    table = graph.rankings(sizes=(2, 5))
    assert table["ranked_by"] == [
        by for by in ("relevance", "supporting", "gradient", "difference", "coefficient", "random") for _ in "12"
    ]
    assert table["nodes"] == [2, 5] * 6
    own = graph.test(sizes=(2, 5))
    assert table["faithfulness"][:2] == own["faithfulness"] and table["faithfulness"][10:] == own["random"]
    assert table["faithfulness"][4:6] == graph.test(sizes=(2, 5), ranked_by="gradient")["faithfulness"]
    with pytest.raises(InvalidInput, match="not one of"):
        graph.test(ranked_by="size")  # type: ignore[arg-type]


def test_supporting_nodes_are_those_of_positive_relevance() -> None:
    graph = circuit(tiny("llama"), pairs=PAIRS, max_nodes=5)
    every, supporting = graph.ranking.nodes(("memory",)), graph.ranking.nodes(("memory",), supporting=True)
    relevance = [float(one) for one, kind in zip(graph.ranking.relevance, graph.ranking.kind, strict=True) if kind == 0]
    assert supporting == [node for node, value in zip(every, relevance, strict=True) if value > 0]
    assert 0 < len(supporting) < len(every)

"""Influence over all paths, against paths added one by one, and the two scores of a graph."""

from __future__ import annotations

import pytest
from tests.conftest import tiny

from unembed.circuit_graph import circuit
from unembed.circuit_graph.influence import influence

KINDS = {"a": "memory", "b": "head", "t": "token", "r": "rest", "bias L0": "bias"}
EDGES = [
    ("t", "a", 3.0),
    ("r", "a", -1.0),
    ("bias L0", "a", 50.0),
    ("a", "b", -2.0),
    ("t", "b", 2.0),
    ("a", "metric", 1.0),
    ("b", "metric", -2.0),
    ("r", "metric", 1.0),
]


def test_influence_is_the_sum_over_all_paths_in_shares_of_what_flows_in() -> None:
    found = influence(KINDS, EDGES, "metric")
    # Into a: t 3/4, r 1/4; into b: a 1/2, t 1/2; into the metric: a 1/4, b 1/2, r 1/4. Biases are left out.
    a = 1 / 4 + 1 / 2 * 1 / 2
    assert dict(found.of) == pytest.approx(
        {"a": a, "b": 1 / 2, "t": a * 3 / 4 + 1 / 2 * 1 / 2, "r": a / 4 + 1 / 4, "bias L0": 0.0}
    )
    assert found.of["t"] + found.of["r"] == pytest.approx(1.0)  # every path begins somewhere
    assert found.replacement == pytest.approx(found.of["t"])
    inside = (1.0 * 3 / 4 + a * 3 / 4 + 1 / 2 + found.of["t"] + found.of["r"]) / (2 + a + 1 / 2)
    assert found.completeness == pytest.approx(inside)


def test_without_edges_both_scores_are_0() -> None:
    found = influence(KINDS, [], "metric")
    assert set(found.of.values()) == {0.0} and (found.replacement, found.completeness) == (0.0, 0.0)


@pytest.mark.parametrize("other", [None, [5, 17, 61, 42, 11, 8]])
def test_a_graph_with_all_nodes_has_the_scores_of_nothing_left_out(other: list[int] | None) -> None:
    lm = tiny("gpt2")
    scores = [circuit(lm, [5, 17, 23, 42, 11, 8], 5, 9, other, max_nodes=n) for n in (5, 60)]
    few, many = ((graph.replacement, graph.completeness) for graph in scores)
    assert 0 < few[0] < many[0] <= 1 and 0 < few[1] < many[1] <= 1
    reached = [dict(zip(g.nodes["name"], g.nodes["influence"], strict=True)) for g in scores]
    ends = [row["name"] for row in scores[0].nodes.rows() if row["kind"] in ("token", "rest")] + ["positions"]
    assert sum(reached[0].get(name, 0.0) for name in ends) == pytest.approx(1.0)

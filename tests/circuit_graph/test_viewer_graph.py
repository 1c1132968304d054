"""Attribution graphs for other viewers: every edge is there, every node once, and what the viewers read from labels."""

from __future__ import annotations

import pytest
from tests.conftest import tiny

from unembed.circuit_graph import CircuitGraph, circuit
from unembed.circuit_graph.viewer_graph import ERROR, FEATURE, LOGIT, viewer_graph
from unembed.errors import InvalidInput

PROMPT, OTHER = [5, 17, 23, 42, 11, 8], [5, 17, 61, 42, 11, 8]


@pytest.fixture(params=["gpt2", "llama"])
def graph(request: pytest.FixtureRequest) -> CircuitGraph:
    return circuit(tiny(request.param), PROMPT, 5, 9, OTHER, max_nodes=25)


def test_every_node_and_edge_is_written_once(graph: CircuitGraph) -> None:
    found = viewer_graph(graph)
    ids = [node["node_id"] for node in found["nodes"]]
    assert len(ids) == len(set(ids)) == len(graph.nodes) + 1
    assert {link["source"] for link in found["links"]} | {link["target"] for link in found["links"]} <= set(ids)
    assert [link["weight"] for link in found["links"]] == graph.edges["weight"]
    features = [node["feature"] for node in found["nodes"] if node["feature_type"] == FEATURE]
    positions = [(node["feature"], node["ctx_idx"]) for node in found["nodes"] if node["feature_type"] == FEATURE]
    assert len(features) > 20 and len(positions) == len(set(positions))


def test_the_output_has_the_whole_difference_and_its_probability_in_its_label(graph: CircuitGraph) -> None:
    found = viewer_graph(graph)
    (answer,) = [node for node in found["nodes"] if node["feature_type"] == LOGIT]
    into = sum(link["weight"] for link in found["links"] if link["target"] == answer["node_id"])
    assert into == pytest.approx(graph.metric - (graph.counterfactual_metric or 0.0), abs=1e-5)
    assert graph.lm is not None
    probability = float(graph.lm.run(PROMPT).logits[0, -1].softmax(-1)[5])
    assert float(answer["clerp"].split("(p=")[1].split(")")[0]) == pytest.approx(probability, abs=1e-3)


def test_influence_rises_to_one_as_nodes_become_smaller(graph: CircuitGraph) -> None:
    found = viewer_graph(graph)
    influence = {node["node_id"]: node["influence"] for node in found["nodes"]}
    largest = max(graph.nodes.rows(), key=lambda row: abs(row["relevance"] or 0.0))
    shares = sorted(value for value in influence.values() if value is not None)
    whole = sum(abs(relevance or 0.0) for relevance in graph.nodes["relevance"])
    assert shares[0] == pytest.approx(abs(largest["relevance"]) / whole) and shares[-1] == pytest.approx(1.0)


def test_what_is_added_up_is_an_error_node_of_its_layer(graph: CircuitGraph) -> None:
    rest = [node for node in viewer_graph(graph)["nodes"] if node["feature_type"] == ERROR]
    assert {node["layer"] for node in rest} >= {"0", "1"} and all(node["clerp"] for node in rest)


def test_several_prompts_are_refused() -> None:
    graph = circuit(tiny("gpt2"), pairs=[(PROMPT, OTHER, 5, 9), (OTHER, PROMPT, 5, 9)], max_nodes=5)
    with pytest.raises(InvalidInput, match="2 prompts"):
        viewer_graph(graph)

"""The data of a picture: what it leaves out is added up, so that every sum still holds."""

from __future__ import annotations

import json

import pytest
from tests.conftest import tiny

from unembed.circuit_graph import CircuitGraph, circuit
from unembed.circuit_graph.flow_view import BOXES, FlowView, flow_view

PROMPT, OTHER = [5, 17, 23, 42, 11, 8], [5, 17, 61, 42, 11, 8]


def into(view: FlowView, target: int) -> float:
    """The sum of the edges into a node, or into the metric (-1)."""
    return sum(weight for _, to, weight in view.edges if to == target)


def drawn(name: str, other: list[int] | None, most: int = 70) -> tuple[CircuitGraph, FlowView]:
    graph = circuit(tiny(name), PROMPT, 5, 9, other, max_nodes=most)
    return graph, flow_view(graph)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gptj"])
@pytest.mark.parametrize("other", [None, OTHER])
def test_what_flows_into_each_part_of_a_picture_adds_up(name: str, other: list[int] | None) -> None:
    graph, view = drawn(name, other)
    writers = [i for i, node in enumerate(view.nodes) if node.kind in ("head", "memory")]
    assert len(writers) == BOXES < sum(kind in ("head", "memory") for kind in graph.nodes["kind"])
    for i in writers:
        assert into(view, i) == pytest.approx(view.nodes[i].relevance, abs=1e-5)
    assert into(view, -1) == pytest.approx(view.explained, abs=1e-5)
    assert view.explained == pytest.approx(graph.metric - (graph.counterfactual_metric or 0.0), abs=1e-12)


def test_hidden_nodes_are_added_to_the_rest_of_their_layer() -> None:
    graph, view = drawn("llama", OTHER)
    kinds = ("head", "memory", "rest")
    for layer in range(2):
        whole = sum(r["relevance"] for r in graph.nodes.rows() if r["layer"] == layer and r["kind"] in kinds)
        shown = sum(n.relevance or 0.0 for n in view.nodes if n.layer == layer and n.kind in kinds)
        assert shown == pytest.approx(whole, abs=1e-9)
    assert {node.name for node in view.nodes} < set(graph.nodes["name"])


def test_a_head_names_what_it_reads_and_a_sum_lies_where_it_is_read() -> None:
    graph, view = drawn("gpt2", OTHER, 30)
    by_name = {node.name: node for node in view.nodes}
    head = next(node for node in view.nodes if node.kind == "head")
    assert f"@{head.reads}," in head.label and len(head.promotes) == 3
    feeds = [edge for edge in graph.edges.rows() if edge["source"] == "rest L0" and edge["target"] != "metric"]
    target = by_name[max(feeds, key=lambda edge: abs(edge["weight"]))["target"]]
    assert by_name["rest L0"].reads == (target.reads if target.kind == "head" else target.position)


def test_a_label_ends_with_the_promoted_tokens() -> None:
    graph, view = drawn("gpt2", None, 30)
    rows = {row["name"]: str(row["label"]) for row in graph.nodes.rows()}
    for node in view.nodes:
        if node.kind in ("head", "memory"):
            assert rows[node.name].endswith("promotes " + " ".join(f'"{word}"' for word in node.promotes))
        else:
            assert not node.promotes


def test_several_prompts_have_a_picture_with_positions_from_the_end() -> None:
    lm = tiny("gpt2")
    graph = circuit(lm, pairs=[(PROMPT, OTHER, 5, 9), (OTHER, PROMPT, 5, 9)], max_nodes=20)
    view = flow_view(graph)
    assert view.n_prompts == 2 and view.counterfactual is None and not view.probabilities
    assert all(node.position is None or node.position < 0 for node in view.nodes)
    assert into(view, -1) == pytest.approx(view.explained, abs=1e-5)


def test_a_picture_is_json() -> None:
    _, view = drawn("gpt2", OTHER, 10)
    assert json.loads(json.dumps(view.to_dict(), allow_nan=False))["schema"] == "unembed.flow/1"

"""Groups of nodes by role, by values and by description, and graphs with groups in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import tiny

import unembed
from unembed.circuit_graph import CircuitGraph, circuit
from unembed.circuit_graph.groups import AGAINST, ANSWER, BETWEEN, MOVES, READS, SIMILAR, TOKENS, by_role
from unembed.circuit_graph.labels import written
from unembed.circuit_graph.removal_of_each import Changed, removal_of_each, with_each
from unembed.concepts.value_concepts import vector_concepts
from unembed.errors import InvalidInput, Unsupported
from unembed.results import visible

PROMPT, OTHER = [5, 17, 23, 42, 11, 8], [5, 17, 61, 42, 11, 8]


def row(kind: str, relevance: float, reads: int | None = None, position: int = 3) -> dict[str, Any]:
    return {"kind": kind, "relevance": relevance, "position": position, "reads": reads}


def test_roles_follow_from_what_flows_in_and_out() -> None:
    rows = {
        "a": row("memory", 2.0),
        "b": row("memory", -2.0),
        "c": row("head", 1.0, reads=1),
        "d": row("head", 1.0, reads=3),
        "e": row("memory", 1.0),
    }
    edges = [
        ("a", "metric", 1.0),
        ("b", "metric", -2.0),
        ("c", "a", 1.0),
        ("token@1", "c", 1.0),
        ("token@3", "d", -1.0),
        ("rest L0", "d", 0.5),
        ("d", "e", 1.0),
        ("e", "metric", 0.4),
        ("token@3", "e", 0.4),
        ("rest L0", "e", -0.6),
    ]
    found = by_role(rows, [dict(zip(("source", "target", "weight"), edge, strict=True)) for edge in edges], "metric")
    assert found == {ANSWER: ("a",), AGAINST: ("b",), MOVES: ("c",), READS: ("d",), BETWEEN: ("e",)}


def test_groups_by_values_are_similar_directions() -> None:
    graph = circuit(tiny("llama"), PROMPT, 5, 9, OTHER, max_nodes=60).grouped("values")
    names = list(graph.circuit_rows())
    nodes = [graph.node(name) for name in names]
    assert graph.lm is not None and graph.groups
    unit = torch.nn.functional.normalize(written(graph.lm, PROMPT, nodes), dim=1)
    place = {name: i for i, name in enumerate(names)}
    for members in graph.groups.values():
        at = [place[name] for name in members]
        assert len(at) > 1
        means = [float((unit[a] @ unit[[b for b in at if b != a]].T).mean()) for a in at]
        assert max(means) >= SIMILAR
    grouped = [name for members in graph.groups.values() for name in members]
    assert len(set(grouped)) == len(grouped)


def test_groups_by_description_share_a_concept() -> None:
    lm = unembed.load()
    graph = lm.circuit("The dogs", " are", " is", "The dog", max_nodes=20).grouped("description")
    rows = graph.circuit_rows()
    names = list(rows)
    vectors = written(lm, graph.cases[0].prompt, [graph.node(name) for name in names])
    expected = vector_concepts(lm, vectors, embedding=False).concepts
    counted = [[concept.name for concept in found if concept.counted] for found in expected]
    first = {name: found[0] for name, found in zip(names, counted, strict=True) if found}
    shared = {name: f"promotes {found}" for name, found in first.items() if list(first.values()).count(found) > 1}
    assert shared
    assert {name: group for group, members in graph.groups.items() for name in members} == shared


def test_a_cluster_is_named_by_what_its_nodes_raise_and_lower_together() -> None:
    """The tokens are those whose probability the model changes most when the counterfactual's values replace them."""
    lm = unembed.load()
    graph = lm.circuit("The dogs", " are", " is", "The dog", max_nodes=40).grouped("values")
    name, members = next(iter(graph.groups.items()))
    assert len(members) > 1 and name.startswith("raises ") and ", lowers " in name
    case = graph.cases[0]
    nodes = tuple(graph.node(member) for member in members)
    whole, removed = with_each(lm, case, [Changed(), Changed(nodes)], "counterfactual")
    is_likelier = removed.probabilities[1] > whole.probabilities[1]
    raised, lowered = (part.split(" ")[1:] for part in name.split(", "))
    assert "·is" not in (raised if is_likelier else lowered)
    changed = removal_of_each(lm, [case], [nodes], "counterfactual")[1]
    assert changed.metric == pytest.approx(removed.metric, abs=1e-5) and changed.tokens is not None
    assert [visible(text) for text in changed.tokens.raised[:TOKENS]] == raised
    assert [visible(text) for text in changed.tokens.lowered[:TOKENS]] == lowered


def test_a_cluster_of_prompts_with_different_answers_is_named_by_its_first_node() -> None:
    lm = tiny("llama")
    pairs = [(PROMPT, OTHER, 5, 9), (PROMPT, OTHER, 7, 9)]
    graph = lm.circuit(pairs=pairs, max_nodes=60).grouped("values")
    assert graph.groups
    assert all(name == f"like {members[0]}" for name, members in graph.groups.items())


def test_groups_by_hand_are_saved_and_opened(tmp_path: Path) -> None:
    lm = tiny("llama")
    graph = circuit(lm, PROMPT, 5, 9, OTHER, max_nodes=30)
    name = next(iter(graph.circuit_rows()))
    same = [one for one in graph.circuit_rows() if one.split("@")[0] == name.split("@")[0]]
    graph = graph.with_group("first", [name.split("@")[0]]).grouped("role")
    assert graph.groups["first"] == tuple(same)
    graph.save(tmp_path / "graph")
    again: CircuitGraph = unembed.open_result(tmp_path / "graph")
    assert again.groups == graph.groups and again.grouped("role").groups == graph.groups
    with pytest.raises(Unsupported, match="no model"):
        again.grouped("values")
    with pytest.raises(Unsupported, match="no model"):
        again.intervene()
    assert again.bound_to(lm).intervene().to_dict() == graph.intervene().to_dict()
    with pytest.raises(InvalidInput, match="no head, memory or feature"):
        graph.with_group("none", ["token@1"])
    with pytest.raises(InvalidInput, match="not one of"):
        graph.grouped("size")  # type: ignore[arg-type]

"""Graphs: edges against a model written by hand, sums into every node, several prompts, files, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.circuit_graph.frozen_model import Frozen
from tests.conftest import tiny
from tests.families import EXPERTS, build

import unembed
from unembed.circuit_graph import CircuitGraph, circuit
from unembed.circuit_graph.relevance import Aim, readout
from unembed.errors import InvalidInput, Unsupported
from unembed.linear_model.linear_pass import linear_pass

PROMPT, OTHER = [5, 17, 23, 42, 11, 8], [5, 17, 61, 42, 11, 8]


def flows(graph: CircuitGraph) -> dict[str, float]:
    """The sum of the edges into each target."""
    sums: dict[str, float] = {}
    for edge in graph.edges.rows():
        sums[edge["target"]] = sums.get(edge["target"], 0.0) + edge["weight"]
    return sums


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gptj", "olmo", "falcon-rw", "opt", *EXPERTS])
@pytest.mark.parametrize("other", [None, OTHER])
def test_edges_into_each_node_add_up_to_its_relevance(name: str, other: list[int] | None) -> None:
    lm = tiny(name)
    graph = circuit(lm, PROMPT, 5, 9, other, max_nodes=25)
    rows = {row["name"]: row for row in graph.nodes.rows()}
    sums = flows(graph)
    kept = [row for row in rows.values() if row["kind"] in ("memory", "head")]
    assert 20 < len(kept) <= 25 and graph.error < 1e-4
    for row in kept:
        assert sums.get(row["name"], 0.0) == pytest.approx(row["relevance"], abs=1e-5)
    whole = graph.metric - (graph.counterfactual_metric or 0.0)
    assert sums["metric"] == pytest.approx(whole, abs=1e-5)
    logits = lm.run(torch.tensor([PROMPT])).logits[0, -1]
    assert graph.metric == pytest.approx(float(logits[5] - logits[9]), abs=1e-6)


HALVES = ["gpt2", "llama", "gemma2", "gptj", "olmo2", "gpt_neox", "qwen3", "cohere-qk-norm", "mpt", "falcon-40b"]
"""Ungated and gated, grouped queries, rotary, ALiBi, norms on either side of a part, parallel blocks, soft caps."""


def rounded(hf: torch.nn.Module, dtype: torch.dtype) -> Any:
    """A model whose weights are rounded to a dtype."""
    return hf.to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [*HALVES, *EXPERTS])
def test_edges_add_up_in_half_precision(name: str, dtype: torch.dtype) -> None:
    limit = 5e-2 if dtype == torch.bfloat16 else 1e-2
    exact = circuit(unembed.load(rounded(build(name), dtype).float()), PROMPT, 5, 9, max_nodes=25)
    graph = circuit(unembed.load(rounded(build(name), dtype)), PROMPT, 5, 9, max_nodes=25)
    assert graph.error < limit
    rows = {row["name"]: row["relevance"] for row in graph.nodes.rows() if row["kind"] in ("memory", "head")}
    sums, largest = flows(graph), {row["name"]: 0.0 for row in graph.nodes.rows()} | {"metric": 0.0}
    for edge in graph.edges.rows():
        largest[edge["target"]] = max(largest[edge["target"]], abs(edge["weight"]))
    for target, whole in {**rows, "metric": graph.metric}.items():
        assert abs(sums.get(target, 0.0) - whole) <= limit * max(abs(whole), largest[target]) + 1e-6
    # The same circuit as in float32, up to rounding: half of a coefficient's digits are gone.
    other = {row["name"]: row["relevance"] for row in exact.nodes.rows()}
    shared = [name for name in rows if name in other]
    assert len(shared) > 0.6 * len(rows)
    size = max(abs(value) for value in other.values() if value is not None)
    assert max(abs(rows[name] - other[name]) for name in shared) < (0.1 if dtype == torch.bfloat16 else 0.02) * size


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gptj", "olmo2", "qwen3", "bloom", *EXPERTS])
@pytest.mark.parametrize("other", [None, OTHER])
def test_edges_through_patterns_add_up_too(name: str, other: list[int] | None) -> None:
    graph = circuit(tiny(name), PROMPT, 5, 9, other, max_nodes=25, qk="shared")
    sums = flows(graph)
    kept = [row for row in graph.nodes.rows() if row["kind"] in ("memory", "head")]
    assert len(kept) > 20 and graph.error < 1e-4
    for row in kept:
        assert sums.get(row["name"], 0.0) == pytest.approx(row["relevance"], abs=1e-5)
    assert sums["metric"] == pytest.approx(graph.metric - (graph.counterfactual_metric or 0.0), abs=1e-5)
    assert graph.provenance.notes["qk"] == "shared"


def test_an_edge_is_what_a_node_reads_from_another_directly() -> None:
    lm = tiny("gpt2", torch.float64)
    graph = circuit(lm, PROMPT, 5, 9, max_nodes=40)
    tokens = torch.tensor([PROMPT])
    u = readout(linear_pass(lm, tokens), Aim([5], [9])).u[0]
    frozen = Frozen(lm, tokens, u, is_gated=False)
    rows = {row["name"]: row for row in graph.nodes.rows()}
    compared = 0
    for edge in graph.edges.rows():
        source, target = rows.get(edge["source"]), rows.get(edge["target"])
        if source is None or source["kind"] not in ("memory", "head", "token") or abs(edge["weight"]) < 1e-4:
            continue
        if target is not None and (target["kind"] not in ("memory", "head") or compared > 30):
            continue
        into = None if target is None else (target["kind"], target["layer"], target["position"], target["index"])
        removed = (source["kind"], source["layer"] or 0, source["position"], source["index"] or 0)
        whole = frozen.metric(pinned=True, into=into)
        if source["kind"] == "token" and source["position"] is not None:
            continue  # the position embedding is in the same vector: compared in test_relevance
        assert edge["weight"] == pytest.approx(whole - frozen.metric(removed, pinned=True, into=into), abs=1e-9)
        compared += 1
    assert compared > 20


def test_a_paired_graph_explains_the_difference_of_two_runs() -> None:
    graph = circuit(tiny("llama"), PROMPT, 5, 9, OTHER, max_nodes=30)
    rows = graph.nodes.rows()
    tokens = {row["position"]: row["relevance"] for row in rows if row["kind"] == "token"}
    assert tokens[2] != 0.0 and all(value == 0.0 for position, value in tokens.items() if position != 2)
    early = [row for row in graph.nodes.rows() if row["kind"] in ("memory", "head") and row["position"] < 2]
    assert early == []  # nothing differs before the changed token


def test_several_prompts_are_their_mean() -> None:
    lm = tiny("llama")
    pairs = [(PROMPT, OTHER, 5, 9), ([1, 2, 3, 4, 11, 8], [1, 2, 3, 7, 11, 8], 6, 5)]
    both = lm.circuit(pairs=pairs, max_nodes=1000)
    one, two = (lm.circuit(*(p[0], p[2], p[3], p[1]), max_nodes=1000) for p in pairs)
    assert both.metric == pytest.approx((one.metric + two.metric) / 2, abs=1e-6)
    of = [
        {
            (row["kind"], row["layer"], row["position"] - shift, row["index"]): row["relevance"]
            for row in graph.nodes.rows()
            if row["kind"] in ("memory", "head")
        }
        for graph, shift in ((both, 0), (one, 6), (two, 6))
    ]
    shared = [key for key in of[0] if key in of[1] and key in of[2]]
    assert len(shared) > 20
    for key in shared:
        assert of[0][key] == pytest.approx((of[1][key] + of[2][key]) / 2, abs=1e-5)
    assert both.tokens == one.tokens


def test_prompts_of_different_lengths_are_aligned_at_their_ends() -> None:
    lm = tiny("gpt2")
    short = (PROMPT[2:], OTHER[2:], 5, 9)
    graph = lm.circuit(pairs=[(PROMPT, OTHER, 5, 9), short], max_nodes=20)
    positions = {row["position"] for row in graph.nodes.rows() if row["kind"] in ("memory", "head")}
    assert positions <= set(range(-6, 0)) and -1 in positions
    assert graph.test(sizes=(5,))["nodes"] == [5]


def test_the_same_prompts_in_batches_give_the_same_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny("llama")
    pairs = [(PROMPT, OTHER, 5, 9), (OTHER, PROMPT, 9, 5), ([*PROMPT[:-1], 9], OTHER, 5, 9)]
    whole = lm.circuit(pairs=pairs, max_nodes=20)
    monkeypatch.setattr("unembed.circuit_graph.cases.BATCH_TOKENS", 6)
    monkeypatch.setattr("unembed.circuit_graph.direct_edges._GRADIENT_NUMBERS", 1)
    parts = lm.circuit(pairs=pairs, max_nodes=20)
    assert whole.nodes["name"] == parts.nodes["name"]
    assert flows(whole) == pytest.approx(flows(parts), abs=1e-5)
    assert whole.test(sizes=(5,))["faithfulness"] == pytest.approx(parts.test(sizes=(5,))["faithfulness"], abs=1e-5)


def test_a_graph_is_saved_and_opened_again(tmp_path: Path) -> None:
    lm = tiny("llama")
    graph = lm.circuit(PROMPT, 5, 9, OTHER, max_nodes=10)
    graph.save(tmp_path / "graph.safetensors")
    again = unembed.open_result(tmp_path / "graph.safetensors")
    assert again.nodes.to_dict() == graph.nodes.to_dict() and again.edges.to_dict() == graph.edges.to_dict()
    assert (again.metric, again.error, again.cases) == (graph.metric, graph.error, graph.cases)
    with pytest.raises(Unsupported, match="no model"):
        again.test()
    assert again.bound_to(lm).test(sizes=(5,)).to_dict() == graph.test(sizes=(5,)).to_dict()
    with pytest.raises(InvalidInput, match="another model"):
        again.bound_to(tiny("gpt2"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs a prompt and a token"),
        ({"prompt": PROMPT}, "needs a prompt and a token"),
        ({"prompt": PROMPT, "token": 5, "against": 5}, "against itself"),
        ({"prompt": PROMPT, "token": 5, "against_prompt": [5, 6]}, "as many tokens"),
        ({"prompt": PROMPT, "pairs": [(PROMPT, None, 5, 9)]}, "one or for the other"),
        ({"prompt": PROMPT, "token": 5, "qk": "half"}, "constant"),
        ({"pairs": []}, "list of pairs is empty"),
        ({"pairs": [(PROMPT, OTHER)]}, "four elements"),
        ({"pairs": [(PROMPT, OTHER, 5, 9), (PROMPT, None, 5, 9)]}, "only some"),
        ({"prompt": torch.tensor([PROMPT, OTHER]), "token": 5}, "one is expected"),
    ],
)
def test_what_is_no_circuit_is_refused_in_one_line(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        circuit(tiny("gpt2"), **arguments)  # type: ignore[arg-type]


def test_a_model_without_memories_has_a_circuit_of_heads() -> None:
    graph = circuit(tiny("attention-only"), PROMPT, 5, 9, OTHER, max_nodes=8)
    assert {row["kind"] for row in graph.nodes.rows()} == {"head", "token", "rest"}
    assert flows(graph)["metric"] == pytest.approx(graph.metric - graph.counterfactual_metric, abs=1e-5)
    assert graph.test(sizes=(4,))["nodes"] == [4]

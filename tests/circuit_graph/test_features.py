"""Features of a dictionary as nodes: sums at every cut, edges, the test by hand, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import tiny

import unembed
from unembed.circuit_graph import CircuitGraph, circuit
from unembed.circuit_graph.cases import read_cases
from unembed.circuit_graph.faithfulness import Bench
from unembed.circuit_graph.features import in_place_of_memories
from unembed.circuit_graph.node_scores import Node
from unembed.circuit_graph.relevance import Aim, contribution, relevance
from unembed.dictionaries import AttachedDictionary, Dictionary, attach
from unembed.errors import InvalidInput, Unsupported
from unembed.language_model import LanguageModel
from unembed.linear_model.linear_pass import linear_pass

PROMPT, OTHER = [5, 17, 23, 42, 11, 8], [5, 17, 61, 42, 11, 8]
D, F = 48, 64
POINTS = [("mlp_in", "mlp_out"), ("resid_mid", "mlp_out"), ("resid_post", "resid_post"), ("attn_out", "attn_out")]


def dictionary(
    lm: LanguageModel, reads: str, writes: str, activation: str = "relu", layer: int = 1
) -> AttachedDictionary:
    generator = torch.Generator().manual_seed(layer)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) / shape[0] ** 0.5

    more: dict[str, Any] = {"b_in": 0.1 * normal(D)}
    more |= {"threshold": 0.1 * normal(F).abs()} if activation == "jumprelu" else {}
    more |= {"k": 20} if activation == "topk" else {}
    more |= {"r_mag": 0.3 * normal(F), "b_mag": 0.1 * normal(F)} if activation == "gated" else {}
    made = Dictionary(
        normal(D, F), 0.1 * normal(F), (normal(F, D),), 0.1 * normal(D), activation,
        layer=layer, reads=reads, writes=writes, **more,
    )  # fmt: skip
    return attach(lm, made)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gptj", "qwen2_moe", "olmo2", "gpt_neox"])
@pytest.mark.parametrize(("reads", "writes"), POINTS)
def test_sums_hold_at_every_cut_and_the_run_is_the_models_own(name: str, reads: str, writes: str) -> None:
    lm = tiny(name)
    if reads == "resid_mid" and name in ("gptj", "gpt_neox"):
        pytest.skip("parallel blocks have no resid_mid")
    tokens = torch.tensor([PROMPT, OTHER])
    made = linear_pass(lm, tokens, None, in_place_of_memories(dictionary(lm, reads, writes)))
    with torch.no_grad():
        own = lm.hf(tokens).logits
    assert torch.allclose(made.logits, own, atol=1e-5)
    found = relevance(made, Aim([5, 7], [9, None]))
    assert found.error < 1e-4
    features = contribution(made.parts["feature", 1].own, found.gradients["feature", 1], "feature")
    assert features.abs().sum() > 0.01
    assert (("memory", 1) in made.parts) == (writes != "mlp_out")


@pytest.mark.parametrize("activation", ["relu", "jumprelu", "topk", "gated"])
@pytest.mark.parametrize("other", [None, OTHER])
def test_edges_into_features_add_up_to_their_relevance(activation: str, other: list[int] | None) -> None:
    lm = tiny("llama")
    graph = circuit(lm, PROMPT, 5, 9, other, max_nodes=40, dictionary=dictionary(lm, "mlp_in", "mlp_out", activation))
    rows = [row for row in graph.nodes.rows() if row["kind"] == "feature"]
    assert len(rows) > 3 and all(row["name"].startswith("L1F") for row in rows) and graph.error < 1e-4
    sums: dict[str, float] = {}
    for edge in graph.edges.rows():
        sums[edge["target"]] = sums.get(edge["target"], 0.0) + edge["weight"]
    for row in rows:
        assert sums.get(row["name"], 0.0) == pytest.approx(row["relevance"], abs=1e-5)
    assert ("dictionary error" in graph.nodes["label"]) == (other is None)
    whole = graph.metric - (graph.counterfactual_metric or 0.0)
    assert sums["metric"] == pytest.approx(whole, abs=1e-5)


def test_a_features_relevance_is_what_its_value_adds_directly_in_the_last_layer() -> None:
    lm = tiny("gpt2", torch.float64)
    attached = dictionary(lm, "mlp_in", "mlp_out")
    graph = circuit(lm, PROMPT, 5, 9, max_nodes=500, dictionary=attached)
    seen = lm.run(torch.tensor([PROMPT]), ("mlp_in", "resid_post"))
    f = attached.features(seen, 1)[0, -1].double()
    x = seen.at("resid_post", 1)[0, -1]
    norm = lm.structure.final_norm
    assert norm is not None
    scale = ((x - x.mean()).square().mean() + norm.eps).sqrt()
    u = (lm.weights.W_U[:, 5] - lm.weights.W_U[:, 9]) * norm.gain
    u = (u - u.mean()) / scale
    direct = f * (attached.part(1).W_dec[0].double() @ u)
    rows = {row["index"]: row["relevance"] for row in graph.nodes.rows() if row["kind"] == "feature"}
    assert len(rows) > 10
    for index, value in rows.items():
        assert value == pytest.approx(float(direct[index]), abs=1e-6)


@pytest.mark.parametrize(("reads", "writes"), [POINTS[0], POINTS[2]])
def test_features_of_a_circuit_are_put_in_and_taken_out(reads: str, writes: str) -> None:
    lm = tiny("llama")
    attached = dictionary(lm, reads, writes, layer=0)
    bench = Bench(lm, read_cases(lm, [(PROMPT, OTHER, 5, 9)]), "counterfactual", ("memory", "feature"), attached)
    own, new = (attached.features(torch.tensor([ids]), 0) for ids in (PROMPT, OTHER))
    some = own[0, 5].topk(3).indices.tolist()
    others = lm.run(torch.tensor([OTHER]), ("coefficients",))

    def changed(keep: bool) -> float:
        memories = [n for n in range(2) if writes != "mlp_out" or n]

        def write(x: torch.Tensor, layer: int) -> torch.Tensor | None:
            if layer:
                return None
            now = attached.part(0).encode(x if reads == writes else lm_in[0])
            target = now.clone() if not keep else new.clone()
            target[0, 5, some] = (now if keep else new)[0, 5, some]
            return x + (target - now) @ attached.part(0).W_dec[0]

        lm_in: list[torch.Tensor] = []
        hooks: dict[str, Any] = {writes: write}
        if reads != writes:
            hooks[reads] = lambda x, layer: lm_in.append(x) if layer == 0 else None
        if keep:
            hooks["coefficients"] = lambda m, layer: others.at("coefficients", layer) if layer in memories else None
        logits = lm.run(torch.tensor([PROMPT]), hooks=hooks).logits[0, -1]
        return float(logits[5] - logits[9])

    nodes = [Node("feature", 0, 0, i) for i in some]
    assert bench.metric(nodes).tolist() == pytest.approx([changed(keep=True)], abs=1e-5)
    assert bench.metric(nodes, without=True).tolist() == pytest.approx([changed(keep=False)], abs=1e-5)
    assert abs(changed(keep=False) - changed(keep=True)) > 1e-4


def test_a_graph_of_features_is_opened_with_its_dictionary(tmp_path: Path) -> None:
    lm = tiny("llama")
    attached = dictionary(lm, "mlp_in", "mlp_out")
    graph = circuit(lm, PROMPT, 5, 9, OTHER, max_nodes=20, dictionary=attached)
    graph.save(tmp_path / "graph")
    again: CircuitGraph = unembed.open_result(tmp_path / "graph")
    with pytest.raises(InvalidInput, match="without their dictionary"):
        again.bound_to(lm)
    assert again.bound_to(lm, attached).test(sizes=(5,)).to_dict() == graph.test(sizes=(5,)).to_dict()
    assert graph.test(sizes=(5,)).provenance.notes["kinds"] == ["head", "memory", "feature"]
    with pytest.raises(Unsupported, match="ranked by difference"):
        graph.test(ranked_by="difference")


def test_dictionaries_that_cannot_be_nodes_are_refused() -> None:
    lm = tiny("llama")
    good = dictionary(lm, "mlp_in", "mlp_out", layer=0)
    [(_, part)] = good.parts
    across = AttachedDictionary(lm, ((0, replace(part, W_dec=(part.W_dec[0], part.W_dec[0]))),))
    with pytest.raises(Unsupported, match="several layers"):
        circuit(lm, PROMPT, 5, dictionary=across)
    mixed = AttachedDictionary(lm, ((0, part), (1, replace(part, reads="resid_mid"))))
    with pytest.raises(Unsupported, match="different capture points"):
        circuit(lm, PROMPT, 5, dictionary=mixed)
    with pytest.raises(Unsupported, match="resid_pre"):
        circuit(lm, PROMPT, 5, dictionary=dictionary(lm, "resid_pre", "resid_pre"))

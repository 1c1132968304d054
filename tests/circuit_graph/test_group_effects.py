"""Interventions on groups, against hooks written by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.conftest import tiny

from unembed.circuit_graph import circuit
from unembed.errors import InvalidInput
from unembed.language_model import LanguageModel

PROMPT, OTHER = [5, 17, 23, 42, 11, 8], [5, 17, 61, 42, 11, 8]


def by_hand(lm: LanguageModel, graph: Any, names: list[str], change: str, factor: float) -> torch.Tensor:
    other = lm.run(torch.tensor([OTHER]), ("z", "coefficients"))
    rows = [graph.circuit_rows()[name] for name in names]

    def hook(kind: str, point: str) -> Any:
        def changed(t: torch.Tensor, layer: int) -> torch.Tensor:
            t = t.clone()
            for row in rows:
                if (row["kind"], row["layer"]) == (kind, layer):
                    p, i = row["position"], row["index"]
                    t[0, p, i] = other.at(point, layer)[0, p, i] if change == "patch" else t[0, p, i] * factor
            return t

        return changed

    hooks = {"z": hook("head", "z"), "coefficients": hook("memory", "coefficients")}
    return lm.run(torch.tensor([PROMPT]), hooks=hooks).logits[0, -1]


@pytest.mark.parametrize(("change", "factor"), [("silence", 0.0), ("scale", 3.0), ("patch", 0.0)])
@pytest.mark.parametrize("name", ["gpt2", "qwen2_moe"])
def test_a_group_is_changed_in_the_model_itself(name: str, change: Any, factor: float) -> None:
    lm = tiny(name)
    graph = circuit(lm, PROMPT, 5, 9, OTHER, max_nodes=12)
    names = list(graph.circuit_rows())
    graph = graph.with_group("some", names[:5])
    rows = list(graph.intervene(change, ["some", names[6]], factor=factor).rows())
    assert [row["changed"] for row in rows] == ["nothing", "some", names[6]]
    for row, members in zip(rows, ([], names[:5], [names[6]]), strict=True):
        logits = by_hand(lm, graph, list(members), change, factor)
        assert row["metric"] == pytest.approx(float(logits[5] - logits[9]), abs=1e-5)
        best = logits.softmax(-1).topk(3)
        assert row["tokens"] == lm.token_strings(best.indices)
        assert row["probabilities"] == pytest.approx(best.values.tolist(), abs=1e-5)
        assert row["nodes"] == len(members)
    relevance = [graph.circuit_rows()[name]["relevance"] for name in names[:5]]
    assert rows[1]["relevance"] == pytest.approx(sum(relevance))
    assert rows[1]["metric"] != rows[0]["metric"]


def test_several_prompts_are_averaged() -> None:
    lm = tiny("llama")
    pairs = [(PROMPT, OTHER, 5, 9), (PROMPT[2:], OTHER[2:], 7, 9)]
    graph = lm.circuit(pairs=pairs, max_nodes=5)
    name = next(iter(graph.circuit_rows()))
    both = graph.intervene("patch", [name])["metric"]
    assert both[0] == pytest.approx(graph.metric, abs=1e-5) and both[1] != both[0]


def test_what_cannot_be_changed_is_refused() -> None:
    graph = circuit(tiny("llama"), PROMPT, 5, 9, max_nodes=5)
    with pytest.raises(InvalidInput, match="no counterfactuals"):
        graph.intervene("patch")
    with pytest.raises(InvalidInput, match="no head, memory or feature"):
        graph.intervene("silence", ["France"])
    with pytest.raises(InvalidInput, match="not one of"):
        graph.intervene("remove")  # type: ignore[arg-type]

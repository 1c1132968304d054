"""What surfaces show of heads is null where a layer has no attention, and can be written as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

import pytest
import torch

from tests.models.decoder_classes import tiny_model
from tests.sweeps.recorder import lettered
from unembed.attention import Circuits, head_view, heads_view, partners_view, raised_view
from unembed.errors import Unsupported
from unembed.language_model import load
from unembed.notebook import heads_card
from unembed.trace import TraceSettings, pattern_view, patterns_view, prompt_heads_view, trace_view


@pytest.mark.parametrize(("model_type", "layers"), [("qwen3_next", [3]), ("granitemoehybrid", [1, 3])])
def test_layers_without_attention_have_null_in_place_of_every_score(model_type: str, layers: list[int]) -> None:
    lm = load(tiny_model(model_type))
    view = heads_view(Circuits(lm), 2, 6)
    json.dumps(asdict(view), allow_nan=False)
    for rows in (*view.scores.values(), *view.intervals.values(), view.eigenvalues):
        assert rows is not None
        for layer, row in enumerate(rows):
            assert [value is None for value in row] == [layer not in layers] * 4
    assert all(view.roles[n] == [None] * 4 for n in range(lm.n_layers) if n not in layers)


def test_the_effects_and_patterns_of_a_prompt_are_those_of_the_layers_with_attention(tokens: torch.Tensor) -> None:
    lm = load(tiny_model("granitemoehybrid"))  # whose Mamba layers have eight heads, those with attention four
    trace = lm.trace(tokens[0])
    view = prompt_heads_view(trace, trace.question())
    json.dumps(asdict(view), allow_nan=False)
    rows = trace.attribution(view.target.id, against=view.against and view.against.id, by="head").rows
    for kind, scores in view.scores.items():
        for layer, row in enumerate(scores):
            assert [value is None for value in row] == [layer not in lm.attention_layers] * 4, kind
    for layer in lm.attention_layers:
        own = [r.contribution for r in rows if r.layer == layer and r.label.startswith("head")]
        assert view.scores["effect"][layer] == pytest.approx(own, abs=1e-5)
    pictures = patterns_view(trace).patterns
    assert [len(heads) for heads in pictures] == [4 if n in lm.attention_layers else 0 for n in range(lm.n_layers)]


def test_a_prompt_of_one_token_has_no_entropy(tokens: torch.Tensor) -> None:
    lm = load(tiny_model("llama"))
    trace = lm.trace(tokens[0, :1])
    view = prompt_heads_view(trace, trace.question())
    assert {value for row in view.scores["entropy"] for value in row} == {None}
    assert {value for row in view.scores["own"] for value in row} == {1.0}


def test_a_card_of_a_notebook_is_empty_in_layers_without_attention() -> None:
    lm = load(tiny_model("qwen3_next"))
    card = heads_card(Circuits(lm).head_scores(n_sequences=2, length=6), "induction")
    assert [row[0] is None for row in card.data["scores"]] == [True, True, True, False]
    json.dumps(card.data, allow_nan=False)
    assert not re.search(r"[>:,\[]\s*nan\b", card._repr_html_().lower())


@pytest.mark.parametrize(
    ("model_type", "layer", "has_norms"), [("qwen3_next", 3, False), ("granitemoehybrid", 1, True)]
)
def test_a_pattern_is_shown_where_its_contributions_are_not_defined(
    model_type: str, layer: int, has_norms: bool, tokens: torch.Tensor
) -> None:
    lm = load(tiny_model(model_type))
    trace = lm.trace(tokens[0])
    view = pattern_view(trace, layer, 1)
    assert (view.norms is not None) is has_norms
    pattern = lm.run(tokens[:1], "pattern").at("pattern", layer)[0, 1]
    for n, row in enumerate(view.weights):
        assert row == pytest.approx(pattern[n, : n + 1].tolist(), abs=1e-6)
    with pytest.raises(Unsupported, match="this layer has none"):
        pattern_view(trace, 0, 1)


def test_a_head_without_a_fixed_circuit_has_notes_in_place_of_lists() -> None:
    circuits = Circuits(load(tiny_model("gemma4_text")))
    view = head_view(circuits, 3, 1, 5, 6, 4)
    assert view.raises == view.lowers == view.looks_for == []
    assert partners_view(circuits, 3, 1).partners == []
    assert raised_view(circuits, 3, 1, 4).sources == [] and "no tokenizer" in raised_view(circuits, 3, 1, 4).text
    assert any("uses the keys and values of another layer" in note for note in view.notes)


@pytest.mark.parametrize(("model_type", "heads"), [("lfm3", [0, 0, 4, 0]), ("granitemoehybrid", [8, 4, 8, 4])])
def test_a_layer_is_shown_with_the_heads_that_it_has(model_type: str, heads: list[int]) -> None:
    lm = load(tiny_model(model_type), tokenizer=lettered("gpt2").tokenizer)
    settings = TraceSettings("five tokens", -1, 5, "final", True, (), None)
    for layer, n in enumerate(heads):
        view, _ = trace_view(
            lm, settings, layer=layer, memories=3, token=None, point=None, tracing=lm.trace, heads=True
        )
        assert len(view.layers[0].heads) == n

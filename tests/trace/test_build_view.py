"""Ranks in JSON count from 1, and an event's ranks are those before and after the update that caused it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
import torch
from rich.console import Console

from tests.conftest import tiny
from tests.models.decoder_classes import tiny_model
from tests.sweeps.recorder import lettered
from unembed.cli.trace import html
from unembed.cli.trace.layer_rows import draw_layers
from unembed.language_model import LanguageModel, load
from unembed.memories.token_ranking import promoting
from unembed.steering import ranked_values_table
from unembed.trace import TraceSettings, emergence, explain_view, trace_view, trajectories
from unembed.trace.findings import _update
from unembed.trace.settling import Settling

SETTINGS = TraceSettings("five tokens", -1, 5, "final", True, (), None)


@pytest.fixture(scope="module")
def wren() -> LanguageModel:
    lm = load()
    lm.lens = None  # these tests compare with the logit lens
    return lm


def ranks_in(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Every whole number of a JSON value below a name that says rank, with that name."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from ranks_in(one, key if "rank" in key or key.endswith("_from") else name)
    elif isinstance(value, list):
        for one in value:
            yield from ranks_in(one, name)
    elif name and isinstance(value, int):
        yield name, value


def _listed(lm: LanguageModel, layer: int, index: int) -> list[str]:
    scores = lm.weights.W_out[layer][index] @ lm.weights.W_U
    scores[lm.unlisted] = -torch.inf
    return lm.token_strings(scores.argsort(descending=True)[:30])


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_a_rank_of_zero_is_detected_in_every_result() -> None:
    assert dict(ranks_in({"a": [{"rank_after": 0}], "ranks": [[3]], "id": 0})) == {"rank_after": 0, "ranks": 3}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in ("gpt2", "llama", "gptj", "gemma2", "attention-only")),
        *((name, torch.bfloat16) for name in ("gpt2", "llama", "gptj", "gemma2")),
    ],
)
def test_ranks_in_json_count_from_one(name: str, dtype: torch.dtype, tokens: torch.Tensor) -> None:
    lm = tiny(name, dtype)

    def tracing(prompt: Any, *, edits: Any = ()) -> Any:
        return lm.trace(tokens[0], edits=edits, show_unlearned=True)

    trace = tracing("")
    final = int(trace.prediction[-1])
    options = {"token": None, "tracing": tracing}
    whole, _ = trace_view(lm, SETTINGS, layer=None, memories=3, point="resid_post", **options)
    one, _ = trace_view(lm, SETTINGS, layer=1, memories=3, point=None, heads=True, **options)
    explained, _ = explain_view(lm, SETTINGS, by=None, writers=5, **options)
    values = [asdict(view) for view in (whole, one, explained, emergence(lm, trace, ""))]
    values.append(trajectories(trace, [final, 5]))
    found = [pair for value in values for pair in ranks_in(as_json(value))]
    assert {"rank_before", "rank_after", "after_from", "rank_of_prediction", "ranks"} <= {key for key, _ in found}
    assert [pair for pair in found if not 1 <= pair[1] <= lm.d_vocab] == []
    assert whole.layers[-1].rank_after == 1


def test_tables_of_ranked_values_count_from_one(wren: LanguageModel) -> None:
    table = ranked_values_table(wren, promoting(wren, ["month"], 20))
    assert [row["rank"] for row in table.rows()] == [
        _listed(wren, row["layer"], row["index"]).index(row["token"]) + 1 for row in table.rows()
    ]


def test_an_event_of_attention_has_the_ranks_before_and_after_attention(
    wren: LanguageModel,
) -> None:
    trace = wren.trace("He was born on 16 May, and she was born on the first day of the year")
    events = [event for event in trace.events() if event.cause == "attention"]
    assert events
    for event in events:
        entering, after = (
            trace.ranks_of(event.token, point)[event.layer, event.position] for point in ("resid_pre", "resid_mid")
        )
        assert (event.rank_before, event.rank_after) == (int(entering), int(after))
        assert event.rank_before > event.rank_after == 1


def test_a_list_of_memories_names_experts(tokens: torch.Tensor) -> None:
    lm = tiny("qwen2_moe", torch.float32)

    def tracing(prompt: Any, *, edits: Any = ()) -> Any:
        return lm.trace(tokens[0], edits=edits, show_unlearned=True)

    view, _ = trace_view(lm, SETTINGS, layer=None, memories=5, token=None, point=None, tracing=tracing)
    assert view.memories is not None
    for row in view.memories.rows:
        assert re.fullmatch(r"L\d(E\d+|S)M\d+", row.name) and row.without is not None
    of_memories = [one for one in view.findings if one.kind == "memory" and one.index is not None]
    assert all(lm.memory_name(one.layer, one.index or 0) in one.sentence for one in of_memories)


@pytest.mark.parametrize(
    ("model_type", "kinds"), [("mamba", ["component"]), ("glm4_moe", ["component", "head", "memory"])]
)
def test_an_explanation_splits_a_logit_by_every_kind_of_part_that_the_model_has(
    model_type: str, kinds: list[str]
) -> None:
    lm = load(tiny_model(model_type), tokenizer=lettered("gpt2").tokenizer)
    view, _ = explain_view(lm, SETTINGS, token=None, by=None, writers=5, tracing=lm.trace)
    assert [one.by for one in view.attributions] == kinds
    assert ("80 to 160 memories a layer" in view.sizes) == ("memory" in kinds)


def _words(view: Any) -> str:
    """What the terminal and the page draw of a trace's layers, and its sentences."""
    out = io.StringIO()
    Console(file=out, width=150).print(draw_layers(view, 140))
    told = [*(f.sentence + f.definition for f in view.findings), *(m.sentence for m in view.moves)]
    return "\n".join([out.getvalue(), html._layers(view), *told, *(e.sentence for n in view.layers for e in n.events)])


@pytest.mark.parametrize(
    ("model_type", "sizes", "heading", "mixers"),
    [
        ("llama", "4 layers · 4 heads", "after attention", ["attention"] * 4),
        ("rwkv", "4 layers · no heads", "after mixer (RWKV)", ["mixer (RWKV)"] * 4),
        ("mamba2", "4 layers · 8 heads", "before → after", ["mixer (Mamba-2)"] * 4),
        (
            "granitemoehybrid",
            "4 layers · 4 attention heads, 8 Mamba-2 heads",
            "after mixer",
            ["mixer (Mamba-2)", "attention"] * 2,
        ),
        (
            "qwen3_next",
            "4 layers · 4 attention heads, 4 gated DeltaNet heads",
            "after mixer",
            ["mixer (gated DeltaNet)"] * 3 + ["attention"],
        ),
        ("lfm3", "4 layers · 4 attention heads", "after mixer", None),
        ("falcon_h1", "4 layers · 4 heads", "after attention and mamba", ["attention and mamba"] * 4),
    ],
)
def test_what_is_no_attention_is_not_called_attention(
    model_type: str, sizes: str, heading: str, mixers: list[str] | None
) -> None:
    lm = load(tiny_model(model_type), tokenizer=lettered("gpt2").tokenizer)
    view, _ = trace_view(lm, SETTINGS, layer=None, memories=3, token=None, point=None, tracing=lm.trace)
    assert view.sizes.startswith(sizes) and sizes.split(" · ")[1] in repr(lm)
    if mixers is not None:
        assert [layer.mixer for layer in view.layers] == mixers
    shown = _words(view)
    assert heading in shown
    if not lm.attention_layers:
        assert "attention" not in shown.lower()
    for event in (*view.moves, *(e for layer in view.layers for e in layer.events)):
        if event.cause in ("attention", "mixer"):
            assert (event.cause == "attention") is (event.layer in lm.attention_layers)
            assert event.place == f"layer {event.layer} {lm.mixer_name(event.layer)}"
    if 0 < len(lm.attention_layers) < lm.n_layers:
        (first, *_), others = lm.attention_layers, set(range(lm.n_layers)) - set(lm.attention_layers)
        assert f"attention in layer{'s' * (len(lm.attention_layers) > 1)} {first}" in shown.lower()
        assert any(f"{lm.mixer_name(n)} in layer".lower() in shown.lower() for n in others)


def test_events_and_rank_changes_of_another_mixer_are_its_own() -> None:
    """Over many prompts; the ranks themselves are tested in `tests/trace`."""
    lm = load(tiny_model("granitemoehybrid"), tokenizer=lettered("gpt2").tokenizer)
    found = [
        change for text in ("five tokens", "a garden in May", "the year") for change in lm.trace(text).rank_changes()
    ]
    causes = {(change.cause, change.layer in lm.attention_layers) for change in found if change.cause != "ffn"}
    assert causes == {("mixer", False), ("attention", True)}


@pytest.mark.parametrize(
    ("model_type", "updates"),
    [
        ("mamba2", ["the mixer (Mamba-2) of layer 0", "the mixer (Mamba-2) of layer 1"]),
        # Each layer of Nemotron-H has a mixer or an FFN, never both; GPT-J's are added together.
        ("nemotron_h", ["the mixer (Mamba-2) of layer 0", "the FFN of layer 1", "the attention of layer 2"]),
        ("gptj", ["layer 0"]),
    ],
)
def test_an_update_of_a_layer_of_one_part_is_that_part(model_type: str, updates: list[str]) -> None:
    lm = load(tiny_model(model_type), tokenizer=lettered("gpt2").tokenizer)
    settled = [Settling(n, "layer", 0.1, 0.2, None, None, (), None) for n in range(len(updates))]
    assert [_update(lm, one) for one in settled] == updates

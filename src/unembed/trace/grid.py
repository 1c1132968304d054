"""Collect a prompt's top tokens at all layers and positions, for the grid of the explorer (the web interface)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unembed.errors import PointMissing
from unembed.models.named_tokens import Token
from unembed.models.sizes import sizes_of
from unembed.names import StreamPoint
from unembed.results.lists import numbers
from unembed.trace.view import EventView
from unembed.trace.words import edit_in_words, event_views, prompt_tokens

if TYPE_CHECKING:
    from unembed.lens import Reading
    from unembed.models.decoder import Decoder
    from unembed.trace.trace import Trace

SCHEMA = "unembed.emergence/2"
"""Name of the JSON form; the number rises when a field changes its meaning or is removed."""

STAGES: tuple[StreamPoint, ...] = ("resid_mid", "resid_post")
"""The stream after attention, and after the FFN."""


@dataclass(frozen=True)
class Stage:
    """The top tokens of the stream at one capture point, for every layer and position.

    Lists are indexed by layer, position and, where there are three levels, rank among the top tokens.
    """

    point: str
    ids: list[list[list[int]]]
    probabilities: list[list[list[float]]]
    rank_of_prediction: list[list[int]]
    """By layer and position: the rank, from 1, of the token that the model predicts after that position."""


@dataclass(frozen=True)
class Emergence:
    """How the next-token predictions of a prompt form from layer to layer."""

    schema: str
    provenance: dict[str, Any]
    model: str
    sizes: str
    prompt: str
    edits: list[str]
    tokens: list[Token]
    prediction: list[int]
    """The model's most likely next token after every position."""
    stages: list[Stage]
    embedding: Stage
    """The top tokens of the stream that enters the first layer, as a stage with one layer."""
    events: list[EventView]
    texts: dict[int, str]
    """The text of every token id in the other fields."""
    massive: dict[int, list[int]]
    """By position: the layers after which the stream has massive activations, so that a lens reads little there. Other
    positions are left out."""


@dataclass(frozen=True)
class Part:
    """Some layers of an `Emergence` at one capture point, sent while the other layers are still being read.

    Parts come from the last layer to the first.
    """

    tokens: list[Token]
    prediction: list[int]
    layers: list[int]
    stages: list[Stage]
    """The top tokens of these layers; empty if the part only serves to find events."""
    texts: dict[int, str]
    """The text of every token id of this part."""


def emerging(lm: Decoder, trace: Trace, prompt: str, top: int = 5) -> Iterator[Part | Emergence]:
    """Yield the grid of a trace in parts while its layers are read, and at the end the whole grid.

    The streams after the FFNs come first, then those before the FFNs. The last part is not yielded, because the whole
    grid contains it and follows at once. A part has no stage if its layers are read only to find events.
    """
    prediction = numbers(trace.prediction)
    for layers, point, reading in trace.by_layers():
        if point != "resid_post" and layers.start == 0:
            continue
        stages = [_stage_of(point, reading, top)] if point in STAGES else []
        yield Part(prompt_tokens(trace), prediction, list(layers), stages, _texts(lm, stages, prediction))
    yield emergence(lm, trace, prompt, top)


def emergence(lm: Decoder, trace: Trace, prompt: str, top: int = 5) -> Emergence:
    """Return the grid of a trace: top tokens after attention and FFN at every layer and position, and all events."""
    prediction = numbers(trace.prediction)
    stages = [stage for point in STAGES if (stage := _stage(trace, point, top)) is not None]
    embedding = _stage(trace, "resid_pre", top, slice(1))
    assert embedding is not None  # every model has a stream
    events = event_views(trace)
    texts = _texts(lm, [*stages, embedding], [*prediction, *(e.id for e in events)])
    return Emergence(
        schema=SCHEMA,
        provenance=dataclasses.replace(trace.provenance, basis=trace.basis).to_dict(),
        model=lm.name,
        sizes=sizes_of(lm),
        prompt=prompt,
        edits=[edit_in_words(edit, lm, len(trace)) for edit in trace.edits],
        tokens=prompt_tokens(trace),
        prediction=prediction,
        stages=stages,
        embedding=embedding,
        events=events,
        texts=texts,
        massive=trace.massive_layers(),
    )


def spread(trace: Trace) -> dict[str, dict[str, list[list[float]]]]:
    """Return the entropy of what the lens reads, and its KL divergence from the final prediction, both in nats.

    The keys are the capture point, then "entropy" or "divergence"; the lists are indexed by layer and position.
    """
    found: dict[str, dict[str, list[list[float]]]] = {}
    for point in STAGES:
        with suppress(PointMissing):
            entropy, divergence = trace.entropy_and_kl(point)
            found[point] = {"entropy": numbers(entropy), "divergence": numbers(divergence)}
    return found


def trajectories(trace: Trace, tokens: Sequence[str | int], position: int | None = None) -> dict[str, Any]:
    """Return the ranks and probabilities of tokens at each capture point, indexed by layer and position.

    With `position`, only that position is read.
    """
    ids = [trace.lm.single_token(token) for token in tokens]
    found: list[dict[str, Any]] = [
        {"id": i, "token": text, "points": {}} for i, text in zip(ids, trace.lm.token_strings(ids), strict=True)
    ]
    for point in STAGES:
        with suppress(PointMissing):
            ranks, probabilities = trace.tracked(ids, point, position=position)
            for k, one in enumerate(found):
                one["points"][point] = {
                    "ranks": numbers(ranks[..., k]),
                    "probabilities": numbers(probabilities[..., k]),
                }
    return {"position": None if position is None else position % len(trace), "tokens": found}


def _texts(lm: Decoder, stages: list[Stage], more: list[int]) -> dict[int, str]:
    ids = sorted({i for s in stages for layer in s.ids for cell in layer for i in cell} | set(more))
    return dict(zip(ids, lm.token_strings(ids), strict=True))


def _stage(trace: Trace, point: StreamPoint, top: int, layers: slice = slice(None)) -> Stage | None:
    try:
        found = trace.read(point, max(top, 10), trace.basis)
    except PointMissing:
        return None  # parallel blocks and attention-only models have no stream between attention and FFN
    ids, probabilities = (numbers(column[layers, :, :top]) for column in (found.ids, found.probabilities))
    return Stage(point, ids, probabilities, numbers(trace.prediction_ranks(point)[layers]))


def _stage_of(point: str, reading: Reading, top: int) -> Stage:
    probabilities, ranks = reading.probabilities[..., :top], reading.tracked_ranks[..., 0]
    return Stage(point, numbers(reading.ids[..., :top]), numbers(probabilities), numbers(ranks))

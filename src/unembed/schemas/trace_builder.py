"""The view of a prompt, built from the library's results: selected, named and ordered; nothing is computed here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch

from unembed.errors import PointMissing, Unsupported
from unembed.logit_attribution import kinds_of
from unembed.names import Basis, By, StreamPoint
from unembed.results import Provenance, visible
from unembed.schemas.findings import findings
from unembed.schemas.numbers import numbers
from unembed.schemas.tokens import candidates, prompt_tokens, question_tokens
from unembed.schemas.trace import (
    SCHEMA_EXPLAIN,
    SCHEMA_TRACE,
    AttributionView,
    Candidate,
    ContributionView,
    EventView,
    GridView,
    LayerView,
    MemoriesView,
    SubUpdateView,
    TraceView,
    TriggerView,
)
from unembed.trace.usual_coefficients import usual_coefficients

if TYPE_CHECKING:
    from unembed.index.index import Index
    from unembed.language_model import LanguageModel
    from unembed.logit_attribution import Row
    from unembed.memories.events import Event
    from unembed.memories.top_sub_updates import SubUpdate
    from unembed.models.decoder import Decoder
    from unembed.stream.interventions import Edit
    from unembed.trace.memory_effects import MemoryEffects, MemoryOrder
    from unembed.trace.question import Question
    from unembed.trace.trace import Trace
    from unembed.trace.usual_coefficients import UsualCoefficients


@runtime_checkable
class Tracing(Protocol):
    """Gives the trace of a prompt, such as `lm.trace` or a cache of traces."""

    def __call__(self, prompt: str, /, *, edits: Sequence[Edit]) -> Trace:
        """The trace of the prompt under the edits."""
        ...


_READ_ANYWAY = 10
"""Tokens that a trace reads at every point in its one pass; fewer are cut from these, at no cost."""
_COMPONENTS_SHOWN = 64
_MEMORIES = 10
_TRIGGER_TOKENS = 24
"""Tokens of a trigger's prefix in a view."""


@dataclasses.dataclass(frozen=True)
class TraceSettings:
    """The settings of both commands: position, layers and readings."""

    prompt: str
    position: int
    top: int
    basis: Basis
    show_unlearned: bool
    edits: Sequence[Edit]
    seed: int | None
    against: str | int | None = None
    """The token to compare with; the runner-up when None."""
    alone: bool = False
    """Explain the token's logit alone."""
    order: MemoryOrder = "effect"
    """What memories are ranked by."""


def trace_view(
    lm: LanguageModel,
    settings: TraceSettings,
    *,
    layer: int | None,
    memories: int | None,
    token: str | int | None,
    point: StreamPoint | None,
    tracing: Tracing | None = None,
    index: Index | None = None,
    heads: bool = False,
    dominant: int = 0,
) -> tuple[TraceView, Provenance]:
    """What `unembed trace` shows, and its provenance.

    Args:
        settings: where to look, and how to read.
        layer: only this layer.
        memories: how many with the largest effects on the question; 10 when None, none when 0.
        token: the token to follow; the predicted one when None.
        point: where the grid over all positions is read; no grid when None.
        tracing: gives the trace of a prompt under edits, which may be cached; `lm.trace` when None.
        index: an index of the model, for the top trigger of each sub-update; none are shown when None.
        heads: with `layer`, what its heads add too.
        dominant: memories of each layer, in `layers`, and as many that are always on.
    """
    tracer: Tracing = tracing or lm.trace
    layers = list(range(lm.n_layers)) if layer is None else [lm.layer(layer)]
    target = None if token is None else lm.single_token(token)
    trace = tracer(settings.prompt, edits=settings.edits).showing(settings.show_unlearned)
    common, provenance, question = _common(lm, trace, settings, target, tracer)
    position, target = common["position"], question.token
    updates = _sub_updates(trace, question, layers, position, dominant, settings, index)
    wanted = _MEMORIES if memories is None else memories
    effects = _effects(trace, question, position, layers if layer is not None else None, wanted, settings, index)
    shown = _layers(trace, layers, position, target, settings, updates)
    if layer is not None:
        shown = [_closer(trace, one, position, question, settings, heads) for one in shown]
    grid = None
    if point is not None:
        cells = _read(trace, point, settings)
        grid = GridView(point, layers, [cells[n] for n in layers])
    view = TraceView(
        schema=SCHEMA_TRACE,
        **common,
        layers=shown,
        grid=grid,
        attributions=[_attribution(trace, question, "component", position, _COMPONENTS_SHOWN)],
        findings=findings(trace, question, effects, position, shown) if layer is None else [],
        moves=describe_events(lm, trace.rank_changes(target, position))
        if layer is None and settings.basis == "final"
        else [],
        described=list(trace.described_memories(question.token, position, index=index))
        if wanted and layer is None
        else [],
        memories=None if effects is None or not wanted else _memories_view(effects, index),
    )
    return view, provenance


def explain_view(
    lm: LanguageModel,
    settings: TraceSettings,
    *,
    token: str | int | None,
    by: By | None,
    writers: int,
    tracing: Tracing | None = None,
    index: Index | None = None,
) -> tuple[TraceView, Provenance]:
    """What `unembed explain` shows, and its provenance; the arguments as in `trace_view`."""
    tracer: Tracing = tracing or lm.trace
    target = None if token is None else lm.single_token(token)
    trace = tracer(settings.prompt, edits=settings.edits).showing(settings.show_unlearned)
    common, provenance, question = _common(lm, trace, settings, target, tracer)
    position = common["position"]
    kinds: list[By] = [by] if by is not None else kinds_of(lm, settings.edits)
    view = TraceView(
        schema=SCHEMA_EXPLAIN,
        **common,
        layers=_layers(trace, list(range(lm.n_layers)), position, question.token, settings, {}),
        grid=None,
        attributions=[
            _attribution(
                trace,
                question,
                kind,
                position,
                _COMPONENTS_SHOWN if kind == "component" else writers,
                usual_coefficients(lm, index) if kind == "memory" else None,
            )
            for kind in kinds
        ],
    )
    return view, provenance


def _common(
    lm: LanguageModel, trace: Trace, settings: TraceSettings, target: int | None, tracing: Tracing
) -> tuple[dict[str, Any], Provenance, Question]:
    """The fields that both views have; the position is checked here, before anything costs time."""
    trace.logits(settings.position)
    position = settings.position % len(trace)
    question = trace.question(target, settings.against, position, alone=settings.alone)
    provenance = dataclasses.replace(trace.provenance, basis=settings.basis, seed=settings.seed)
    target_token, against = question_tokens(lm, question, position)
    return (
        {
            "provenance": provenance.to_dict(),
            "model": lm.name,
            "sizes": sizes_of(lm),
            "prompt": settings.prompt,
            "edits": [edit_in_words(edit, lm, len(trace)) for edit in settings.edits],
            "tokens": prompt_tokens(trace),
            "position": position,
            "basis": settings.basis,
            "show_unlearned": settings.show_unlearned,
            "prediction": _prediction(trace, settings, position),
            "without_edits": _without_edits(tracing, settings, position),
            "target": target_token,
            "against": against,
        },
        provenance,
        question,
    )


def _prediction(trace: Trace, settings: TraceSettings, position: int) -> list[Candidate]:
    """The most likely next tokens; the first is the model's own, also where lists leave such a token out."""
    listed = _column(trace, "resid_post", settings, position, basis="final")[-1]
    first = int(trace.prediction[position])
    if listed[0].id == first:
        return listed
    return [*candidates(trace.lm, trace.logits(position), [first]), *listed][: settings.top]


def sizes_of(lm: Decoder) -> str:
    """A model's sizes in one line."""
    parts = [f"{lm.n_layers} layers", f"{lm.n_heads} heads"]
    parts += [f"{lm.memories_a_layer} memories a layer"] if lm.memory_layers else []
    return " · ".join([*parts, f"{lm.d_vocab:,} tokens", lm.dtype_name])


def edit_in_words(edit: Edit, lm: Decoder, n_positions: int) -> str:
    """An edit in words; one at positions after the prompt's `n_positions` tokens is marked as such."""
    if edit.target == "coefficient":
        what = f"memory {lm.memory_name(edit.layer, lm.memory(edit.layer, edit.index)[1])}"
    else:
        named = {"head": f"head L{edit.layer}H{edit.index}", "stream": f"the stream after layer {edit.layer}"}
        what = named.get(edit.target, f"{edit.target} {edit.layer}")
    if edit.vector is not None:
        change = {"set": "replaced by a vector", "add": f"plus {edit.value:g} times a vector"}
    else:
        change = {"set": f"set to {edit.value:g}", "scale": f"times {edit.value:g}", "add": f"plus {edit.value:g}"}
    where = {"all": "", "last": " at the last position"}
    if isinstance(edit.positions, str):
        return f"{what} {change[edit.action]}{where[edit.positions]}"
    after = ", after the prompt: in a continuation only" if min(edit.positions, default=0) >= n_positions else ""
    return f"{what} {change[edit.action]} at {', '.join(map(str, edit.positions))}{after}"


def _without_edits(tracing: Tracing, settings: TraceSettings, position: int) -> list[Candidate] | None:
    if not settings.edits:
        return None
    return _prediction(tracing(settings.prompt, edits=()).showing(settings.show_unlearned), settings, position)


def _read(trace: Trace, point: StreamPoint, settings: TraceSettings) -> list[list[list[Candidate]]]:
    """Candidates by layer, position and place."""
    columns = [_column(trace, point, settings, position) for position in range(len(trace))]
    return [list(layer) for layer in zip(*columns, strict=True)]


def _column(
    trace: Trace, point: StreamPoint, settings: TraceSettings, position: int, basis: Basis | None = None
) -> list[list[Candidate]]:
    """Candidates of one position by layer and place."""
    found = trace.readings(point, max(settings.top, _READ_ANYWAY), basis or settings.basis)
    cells = [numbers(part[:, position, : settings.top]) for part in (found.ids, found.probabilities, found.logits)]
    texts = [layer[position] for layer in found.tokens]
    return [
        [Candidate(i, text, p, logit) for i, p, logit, text in zip(*cell, strict=False)]
        for cell in zip(*cells, texts, strict=True)
    ]


def _layers(
    trace: Trace,
    layers: Sequence[int],
    position: int,
    target: int,
    settings: TraceSettings,
    updates: dict[int, list[SubUpdateView]],
) -> list[LayerView]:
    def at(point: StreamPoint) -> tuple[list[list[Candidate]], list[int], list[float]]:
        ranks, probabilities = trace.ranks_and_probabilities(target, point, settings.basis, position=position)
        return _column(trace, point, settings, position), numbers(ranks[:, 0]), numbers(probabilities[:, 0])

    (before, rank_before, p_before), (after, rank_after, p_after) = at("resid_pre"), at("resid_post")
    try:
        middle, rank_middle, p_middle = at("resid_mid")
    except PointMissing:
        # Parallel and attention-only blocks: no stream between attention and FFN.
        middle = rank_middle = p_middle = None
    events = event_views(trace, position)
    return [
        LayerView(
            layer=n,
            before=before[n],
            middle=None if middle is None else middle[n],
            after=after[n],
            rank_before=rank_before[n],
            rank_middle=None if rank_middle is None else rank_middle[n],
            rank_after=rank_after[n],
            events=[event for event in events if event.layer == n],
            sub_updates=updates.get(n, []),
            probability_before=p_before[n],
            probability_middle=None if p_middle is None else p_middle[n],
            probability_after=p_after[n],
        )
        for n in layers
    ]


def _closer(
    trace: Trace, one: LayerView, position: int, question: Question, settings: TraceSettings, heads: bool
) -> LayerView:
    """One layer with the origin of its candidates and, with `heads`, what its heads add."""
    lists = {"resid_pre": one.after} if one.middle is None else {"resid_pre": one.middle, "resid_mid": one.after}
    ids = [[c.id for c in candidates] for candidates in lists.values()]
    ranks = numbers(trace.ranks_among(ids, list(lists), one.layer, position, settings.basis))
    k = max(settings.top, _READ_ANYWAY)
    return dataclasses.replace(
        one,
        middle_from=None if one.middle is None else ranks[0],
        after_from=ranks[-1],
        heads=list(trace.head_updates(one.layer, position, question.token, question.against, top_tokens=k))
        if heads
        else [],
    )


def event_views(trace: Trace, position: int | None = None) -> list[EventView]:
    """The events at one position or at all; none where the model has no FFN."""
    try:
        return describe_events(trace.lm, trace.events(position))
    except Unsupported:
        return []


def describe_events(lm: Decoder, events: Sequence[Event]) -> list[EventView]:
    """Events with their tokens' texts, and in words."""
    texts = lm.token_strings([event.token for event in events])
    return [_event_view(event, text) for event, text in zip(events, texts, strict=True)]


def _event_view(e: Event, text: str) -> EventView:
    plain = EventView(e.kind, e.layer, e.position, e.token, text, e.rank_before, e.rank_after, e.cause)
    kind = "" if e.kind in ("rise", "fall") else f" ({e.kind})"
    sentence = f"{plain.place[0].upper()}{plain.place[1:]}: {visible(text)} {plain.happened}{kind}."
    return dataclasses.replace(plain, sentence=sentence)


def _sub_updates(
    trace: Trace,
    question: Question,
    layers: Sequence[int],
    position: int,
    memories: int,
    settings: TraceSettings,
    index: Index | None,
) -> dict[int, list[SubUpdateView]]:
    if memories == 0:
        return {}
    k = max(settings.top, _READ_ANYWAY)
    try:
        found = trace.memory_effects_by_layer(
            layers, question, position, memories, index=index, order=settings.order, top_tokens=k
        )
    except Unsupported:  # perhaps not in every layer
        each = (layers[i : i + 1] for i in range(len(layers))) if len(layers) > 1 else ()
        parts = [_sub_updates(trace, question, one, position, memories, settings, index) for one in each]
        return {n: rows for part in parts for n, rows in part.items()}
    return {n: [_described(row, index) for row in rows] for n, rows in zip(layers, found, strict=True)}


def _effects(
    trace: Trace,
    question: Question,
    position: int,
    layers: Sequence[int] | None,
    memories: int,
    settings: TraceSettings,
    index: Index | None,
) -> MemoryEffects | None:
    """What the memories add to the question; None where the layers have none."""
    k = max(settings.top, _READ_ANYWAY)
    try:
        return trace.memory_effects(
            question, position, max(1, memories), layers=layers, index=index, order=settings.order, top_tokens=k
        )
    except (PointMissing, Unsupported):
        return None


def _memories_view(effects: MemoryEffects, index: Index | None) -> MemoriesView:
    return MemoriesView(
        [_described(row, index) for row in effects.rows],
        [_described(row, index) for row in effects.always_on],
        effects.others,
        effects.others_effect,
        effects.total,
    )


def _described(row: SubUpdate, index: Index | None) -> SubUpdateView:
    return SubUpdateView(**vars(row), trigger=_trigger(index, row))


def _trigger(index: Index | None, row: SubUpdate) -> TriggerView | None:
    """The top trigger of a sub-update's key, if an index holds one on its side of zero."""
    pole = "negative" if row.coefficient < 0 else "positive"
    if index is None or pole not in index.poles:
        return None
    found = list(index.triggers(row.layer, row.index, 1, pole=pole, context=_TRIGGER_TOKENS).rows())
    names = [field.name for field in dataclasses.fields(TriggerView)]
    return TriggerView(**{name: found[0][name] for name in names}) if found else None


def _attribution(
    trace: Trace,
    question: Question,
    by: By,
    position: int,
    writers: int,
    usual: UsualCoefficients | None = None,
) -> AttributionView:
    """All writers in the order of the forward pass where they are few, else those with the largest contributions.

    `usual` separates memories that are always on.
    """
    target, against = question.token, question.against
    attribution = trace.attribution(target, position, against, by)
    apart = torch.zeros(len(attribution), dtype=torch.bool)
    for layer, always_on in ({} if usual is None else usual.always_on).items():
        memories = (attribution.layer == layer) & (attribution.index >= 0)
        apart[memories] = always_on[attribution.index[memories]]
    n_apart = int(apart.sum())
    few = len(attribution) <= writers and not n_apart
    rows = attribution.rows if few else attribution.top(writers, ~apart)
    on = attribution.top(n_apart, apart) if n_apart else []
    texts = trace.lm.token_strings([target] if against is None else [target, against])
    return AttributionView(
        by=by,
        id=target,
        token=texts[0],
        against=None if against is None else texts[1],
        logit=attribution.logit,
        total=attribution.total,
        error=attribution.error,
        rows=[_contribution(row) for row in rows],
        others=len(attribution) - len(rows) - len(on),
        others_contribution=attribution.total - sum(row.contribution for row in (*rows, *on)),
        always_on=[_contribution(row) for row in on],
    )


def _contribution(row: Row) -> ContributionView:
    return ContributionView(row.label, row.layer, row.index, row.source, row.contribution)

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
    from unembed.attention.behaviour.head_outputs import HeadUpdate
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
        dominant: memories of each layer, in `layers`, and the same number that are always on.
    """
    layers = list(range(lm.n_layers)) if layer is None else [lm.layer(layer)]
    at = _Position.of(lm, settings, token, tracing, index)
    trace, target, position = at.trace, at.question.token, at.position
    common = at.common()
    updates = at.sub_updates(layers, dominant)
    wanted = _MEMORIES if memories is None else memories
    effects = at.effects(None if layer is None else layers, wanted)
    shown = at.layers(layers, updates)
    if layer is not None:
        shown = [at.closer(one, heads) for one in shown]
    grid = None
    if point is not None:
        columns = [at.column(point, position=n) for n in range(len(trace))]
        grid = GridView(point, layers, [[column[n] for column in columns] for n in layers])
    view = TraceView(
        schema=SCHEMA_TRACE,
        **common,
        layers=shown,
        grid=grid,
        attributions=[at.attribution("component", _COMPONENTS_SHOWN)],
        findings=findings(trace, at.question, effects, position, shown) if layer is None else [],
        moves=describe_events(lm, trace.rank_changes(target, position))
        if layer is None and settings.basis == "final"
        else [],
        described=list(trace.described_memories(target, position, index=index)) if wanted and layer is None else [],
        memories=None if effects is None or not wanted else _memories_view(effects, index),
    )
    return view, at.provenance


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
    at = _Position.of(lm, settings, token, tracing, index)
    kinds: list[By] = [by] if by is not None else kinds_of(lm, settings.edits)
    view = TraceView(
        schema=SCHEMA_EXPLAIN,
        **at.common(),
        layers=at.layers(range(lm.n_layers), {}),
        grid=None,
        attributions=[at.attribution(kind, _COMPONENTS_SHOWN if kind == "component" else writers) for kind in kinds],
    )
    return view, at.provenance


@dataclasses.dataclass(frozen=True)
class _Position:
    """The position of a trace that a view shows, and the question at that position."""

    trace: Trace
    position: int
    question: Question
    settings: TraceSettings
    tracing: Tracing
    index: Index | None

    @classmethod
    def of(
        cls,
        lm: LanguageModel,
        settings: TraceSettings,
        token: str | int | None,
        tracing: Tracing | None,
        index: Index | None,
    ) -> _Position:
        """The position is checked here, before anything costs time."""
        tracing = tracing or lm.trace
        target = None if token is None else lm.single_token(token)
        trace = tracing(settings.prompt, edits=settings.edits).showing(settings.show_unlearned)
        trace.logits(settings.position)
        position = settings.position % len(trace)
        question = trace.question(target, settings.against, position, alone=settings.alone)
        return cls(trace, position, question, settings, tracing, index)

    @property
    def top_tokens(self) -> int:
        return max(self.settings.top, _READ_ANYWAY)

    @property
    def provenance(self) -> Provenance:
        return dataclasses.replace(self.trace.provenance, basis=self.settings.basis, seed=self.settings.seed)

    def common(self) -> dict[str, Any]:
        """The fields that both views have."""
        trace, settings = self.trace, self.settings
        target, against = question_tokens(trace.lm, self.question, self.position)
        return {
            "provenance": self.provenance.to_dict(),
            "model": trace.lm.name,
            "sizes": sizes_of(trace.lm),
            "prompt": settings.prompt,
            "edits": [edit_in_words(edit, trace.lm, len(trace)) for edit in settings.edits],
            "tokens": prompt_tokens(trace),
            "position": self.position,
            "basis": settings.basis,
            "show_unlearned": settings.show_unlearned,
            "prediction": self.prediction(),
            "without_edits": self.without_edits(),
            "target": target,
            "against": against,
        }

    def prediction(self) -> list[Candidate]:
        """The most likely next tokens; the first is the model's own, also where lists leave such a token out."""
        listed = self.column("resid_post", basis="final")[-1]
        first = int(self.trace.prediction[self.position])
        if listed[0].id == first:
            return listed
        own = candidates(self.trace.lm, self.trace.logits(self.position), [first])
        return [*own, *listed][: self.settings.top]

    def without_edits(self) -> list[Candidate] | None:
        """The most likely next tokens of the model as it is; None if there are no edits."""
        if not self.settings.edits:
            return None
        trace = self.tracing(self.settings.prompt, edits=()).showing(self.settings.show_unlearned)
        return dataclasses.replace(self, trace=trace).prediction()

    def column(
        self, point: StreamPoint, basis: Basis | None = None, position: int | None = None
    ) -> list[list[Candidate]]:
        """Candidates at one position, by layer and rank."""
        settings, position = self.settings, self.position if position is None else position
        found = self.trace.readings(point, self.top_tokens, basis or settings.basis)
        cells = [numbers(part[:, position, : settings.top]) for part in (found.ids, found.probabilities, found.logits)]
        texts = [layer[position] for layer in found.tokens]
        return [
            [Candidate(i, text, p, logit) for i, p, logit, text in zip(*cell, strict=False)]
            for cell in zip(*cells, texts, strict=True)
        ]

    def layers(self, layers: Sequence[int], updates: dict[int, list[SubUpdateView]]) -> list[LayerView]:
        """Each layer's readings, events and sub-updates."""

        def at(point: StreamPoint) -> tuple[list[list[Candidate]], list[int], list[float]]:
            ranks, probabilities = self.trace.ranks_and_probabilities(
                self.question.token, point, self.settings.basis, position=self.position
            )
            return self.column(point), numbers(ranks[:, 0]), numbers(probabilities[:, 0])

        (before, rank_before, p_before), (after, rank_after, p_after) = at("resid_pre"), at("resid_post")
        try:
            middle, rank_middle, p_middle = at("resid_mid")
        except PointMissing:
            # Parallel and attention-only blocks: no stream between attention and FFN.
            middle = rank_middle = p_middle = None
        events = event_views(self.trace, self.position)
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
                mixer=self.trace.lm.mixer_name(n),
            )
            for n in layers
        ]

    def closer(self, one: LayerView, heads: bool) -> LayerView:
        """One layer with the origin of its candidates and, with `heads`, what its heads add."""
        lists: dict[StreamPoint, list[Candidate]] = (
            {"resid_pre": one.after} if one.middle is None else {"resid_pre": one.middle, "resid_mid": one.after}
        )
        ids = [[c.id for c in candidates] for candidates in lists.values()]
        ranks = numbers(self.trace.ranks_among(ids, list(lists), one.layer, self.position, self.settings.basis))
        added: list[HeadUpdate] = []
        mixer = self.trace.lm.structure.blocks[one.layer].mixer
        if heads and mixer is not None and mixer.n_heads:
            token, against = self.question.token, self.question.against
            added = list(self.trace.head_updates(one.layer, self.position, token, against, top_tokens=self.top_tokens))
        middle_from = None if one.middle is None else ranks[0]
        return dataclasses.replace(one, middle_from=middle_from, after_from=ranks[-1], heads=added)

    def sub_updates(self, layers: Sequence[int], memories: int) -> dict[int, list[SubUpdateView]]:
        """By layer, the memories with the largest effects on the question; a layer without memories has none."""
        if memories == 0:
            return {}
        order, k = self.settings.order, self.top_tokens
        try:
            found = self.trace.memory_effects_by_layer(
                layers, self.question, self.position, memories, index=self.index, order=order, top_tokens=k
            )
        except Unsupported:  # perhaps not in every layer
            each = (layers[i : i + 1] for i in range(len(layers))) if len(layers) > 1 else ()
            return {n: rows for one in each for n, rows in self.sub_updates(one, memories).items()}
        return {n: [_described(row, self.index) for row in rows] for n, rows in zip(layers, found, strict=True)}

    def effects(self, layers: Sequence[int] | None, memories: int) -> MemoryEffects | None:
        """What the memories add to the question; None where the layers have none."""
        n, order, k = max(1, memories), self.settings.order, self.top_tokens
        try:
            return self.trace.memory_effects(
                self.question, self.position, n, layers=layers, index=self.index, order=order, top_tokens=k
            )
        except (PointMissing, Unsupported):
            return None

    def attribution(self, by: By, writers: int) -> AttributionView:
        """All writers in the order of the forward pass where they are few, else those with the largest contributions.

        Memories that are always on are listed apart.
        """
        lm, target, against = self.trace.lm, self.question.token, self.question.against
        attribution = self.trace.attribution(target, self.position, against, by)
        apart = torch.zeros(len(attribution), dtype=torch.bool)
        usual = usual_coefficients(lm, self.index).always_on if by == "memory" else {}
        for layer, always_on in usual.items():
            memories = (attribution.layer == layer) & (attribution.index >= 0)
            apart[memories] = always_on[attribution.index[memories]]
        n_apart = int(apart.sum())
        few = len(attribution) <= writers and not n_apart
        rows = attribution.rows if few else attribution.top(writers, ~apart)
        on = attribution.top(n_apart, apart) if n_apart else []
        texts = lm.token_strings([target] if against is None else [target, against])
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


def sizes_of(lm: Decoder) -> str:
    """A model's sizes in one line."""
    parts = [f"{lm.n_layers} layers", lm.heads_a_layer]
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


def event_views(trace: Trace, position: int | None = None) -> list[EventView]:
    """The events at one position or at all; none where the model has no FFN."""
    try:
        return describe_events(trace.lm, trace.events(position))
    except Unsupported:
        return []


def describe_events(lm: Decoder, events: Sequence[Event]) -> list[EventView]:
    """Events with their tokens' texts, and in words."""
    texts = lm.token_strings([event.token for event in events])
    return [_event_view(lm, event, text) for event, text in zip(events, texts, strict=True)]


def _event_view(lm: Decoder, e: Event, text: str) -> EventView:
    update = {"ffn": "FFN", "embedding": "embedding"}.get(e.cause) or lm.mixer_name(e.layer)
    plain = EventView(e.kind, e.layer, e.position, e.token, text, e.rank_before, e.rank_after, e.cause, update=update)
    kind = "" if e.kind in ("rise", "fall") else f" ({e.kind})"
    sentence = f"{plain.place[0].upper()}{plain.place[1:]}: {visible(text)} {plain.happened}{kind}."
    return dataclasses.replace(plain, sentence=sentence)


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


def _contribution(row: Row) -> ContributionView:
    return ContributionView(row.label, row.layer, row.index, row.source, row.contribution)

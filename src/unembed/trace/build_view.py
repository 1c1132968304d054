"""Build a `TraceView`: the data that `unembed trace` and `unembed explain` show as text, JSON or a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from unembed.attention.circuits import Circuits
from unembed.attention.text.relations import head_role
from unembed.jacobian.basis import basis_or_default
from unembed.logit_attribution import kinds_of
from unembed.models.sizes import sizes_of
from unembed.names import Basis, By, StreamPoint
from unembed.results import Provenance
from unembed.trace.decisive_parts import DecisiveParts
from unembed.trace.findings import CLOSE, Measured, findings
from unembed.trace.removals import Removal
from unembed.trace.settling import settling
from unembed.trace.shown_position import ShownPosition
from unembed.trace.view import SCHEMA_EXPLAIN, SCHEMA_TRACE, Finding, GridView, LayerView, TraceView
from unembed.trace.words import describe_events, edit_in_words, prompt_roles, prompt_tokens, question_tokens

if TYPE_CHECKING:
    from unembed.index.index import Index
    from unembed.models.decoder import Decoder
    from unembed.stream.interventions import Edit
    from unembed.trace.memory_effects import MemoryOrder
    from unembed.trace.trace import Trace

_COMPONENTS_SHOWN = 64
_MEMORIES = 10


@runtime_checkable
class Tracing(Protocol):
    """A function that returns the trace of a prompt, such as `lm.trace` or a cache of traces."""

    def __call__(self, prompt: str, /, *, edits: Sequence[Edit]) -> Trace:
        """Return the trace of the prompt under the edits."""
        ...


@dataclasses.dataclass(frozen=True)
class TraceSettings:
    """The settings that `unembed trace` and `unembed explain` have in common."""

    prompt: str
    position: int
    top: int
    basis: Basis | None
    """The basis in which the stream is read as tokens; None for the model's fitted lens, or "final" if it has none."""
    show_unlearned: bool
    edits: Sequence[Edit]
    seed: int | None
    against: str | int | None = None
    """The token to compare with; the runner-up when None."""
    alone: bool = False
    """True to explain the token's logit itself, not the difference of two logits."""
    order: MemoryOrder = "effect"
    """The quantity by which memories are ranked."""


def trace_view(
    lm: Decoder,
    settings: TraceSettings,
    *,
    layer: int | None,
    memories: int | None,
    token: str | int | None,
    point: StreamPoint | None,
    tracing: Tracing,
    index: Index | None = None,
    heads: bool = False,
    dominant: int = 0,
) -> tuple[TraceView, Provenance]:
    """Collect what `unembed trace` shows, and its provenance.

    Args:
        settings: the prompt, the position, and how the stream is read as tokens.
        layer: show only this layer; all when None.
        memories: number of memories listed, those with the largest effects on the logit difference; 10 when None.
        token: the token to explain; the predicted one when None.
        point: capture point at which a grid of all layers and positions is read; no grid when None.
        tracing: returns the trace of a prompt under edits, which may be cached.
        index: an index of the model, for each memory's top trigger, the corpus position where its coefficient is
            largest; no triggers are shown when None.
        heads: with `layer`, also show what each of its heads adds.
        dominant: number of memories listed for each layer in the field `layers`. After them, at most the same number
            of memories is listed that are active on nearly every token.
    """
    settings = dataclasses.replace(settings, basis=basis_or_default(lm, settings.basis, "final"))
    layers = list(range(lm.n_layers)) if layer is None else [lm.layer(layer)]
    at = _shown(lm, settings, token, tracing, index)
    trace, position, target = at.trace, at.position, at.question.token
    common = _common(at, settings, tracing)
    updates = at.sub_updates(layers, dominant)
    wanted = _MEMORIES if memories is None else memories
    effects = at.effects(None if layer is None else layers, wanted)
    shown = at.layers(layers, updates)
    parts = DecisiveParts(None)
    own: dict[str, Any] = {"grid": None if point is None else _grid(at, point, layers)}
    if layer is not None:
        shown = [at.closer(one, heads) for one in shown]
    else:
        if wanted:
            described_now = trace.described_memories(target, position, index=index)
            own["described"] = list(described_now)
            if about := described_now.provenance.notes.get("descriptions"):
                common["provenance"]["notes"]["descriptions"] = about
        pair = settings.against is not None and not settings.alone
        parts = at.decisive_parts(pair)
        described = {(one.layer, one.index): one.description for one in own.get("described", ())}
        own["findings"] = _findings(at, settings, parts, described, shown)
        shown = [dataclasses.replace(one, sub_updates=parts.with_measured(one.sub_updates)) for one in shown]
        own |= {"heads": parts.heads, "removed": len(parts.removals)}
        if settings.basis == "final":
            own["moves"] = describe_events(lm, trace.rank_changes(target, position))
    if effects is not None and wanted:
        own["memories"] = at.memories(effects, parts)
    attributions = [at.attribution("component", _COMPONENTS_SHOWN)]
    view = TraceView(schema=SCHEMA_TRACE, **common, layers=shown, attributions=attributions, **own)
    return view, _provenance(at, settings)


def explain_view(
    lm: Decoder,
    settings: TraceSettings,
    *,
    token: str | int | None,
    by: By | None,
    writers: int,
    tracing: Tracing,
    index: Index | None = None,
) -> tuple[TraceView, Provenance]:
    """Collect what `unembed explain` shows, and its provenance.

    The arguments that are not described here are those of `trace_view`.

    Args:
        by: the kind of components among which the logit is split; None to split it once for each kind that the model
            allows.
        writers: largest number of rows of a split by head, source token or memory; a split by component has its own
            limit.
    """
    settings = dataclasses.replace(settings, basis=basis_or_default(lm, settings.basis, "final"))
    at = _shown(lm, settings, token, tracing, index)
    kinds: list[By] = [by] if by is not None else kinds_of(lm, settings.edits)
    view = TraceView(
        schema=SCHEMA_EXPLAIN,
        **_common(at, settings, tracing),
        layers=at.layers(range(lm.n_layers), {}),
        grid=None,
        attributions=[at.attribution(kind, _COMPONENTS_SHOWN if kind == "component" else writers) for kind in kinds],
    )
    return view, _provenance(at, settings)


def _findings(
    at: ShownPosition,
    settings: TraceSettings,
    parts: DecisiveParts,
    described: Mapping[tuple[int, int], str],
    layers: Sequence[LayerView],
) -> list[Finding]:
    logits, target, against = at.trace.logits(at.position).double(), at.question.token, None
    if settings.against is not None and not settings.alone:
        against = at.question.against
    measured = Measured(
        target,
        float(logits.softmax(-1)[target]),
        at.position,
        parts.removals,
        parts.sources,
        described,
        parts.reading_themselves,
        against,
        None if against is None else float(logits[target] - logits[against]),
        _relations(at.trace.lm, parts.removals),
        at.trace.massive()[:, at.position].tolist(),
    )
    settled = settling(layers)
    if settled is not None and not at.lists_first(settled.before, settled.layer):
        settled = dataclasses.replace(settled, displaced=None)
    return findings(at.trace.lm, measured, settled, layers, at.basis)


def _relations(lm: Decoder, removals: Sequence[Removal]) -> dict[tuple[int, int], str]:
    """Return the relation between words, such as country to capital, that a head's weights encode.

    Only heads that matter most are read; those without such a relation are left out.
    """
    most = max((one.effect for one in removals if one.part.index is not None), default=0.0)
    found: dict[tuple[int, int], str] = {}
    for one in removals:
        if one.part.kind == "head" and one.part.index is not None and one.effect >= CLOSE * most > 0:
            role = head_role(Circuits(lm), one.part.layer, one.part.index)
            if role is not None:
                found[one.part.layer, one.part.index] = role.relation
    return found


def _shown(
    lm: Decoder, settings: TraceSettings, token: str | int | None, tracing: Tracing, index: Index | None
) -> ShownPosition:
    """Trace the prompt and read its stream at all layers; return the position to show.

    Its `question` names the token to explain and the token that it is compared with.
    """
    target = None if token is None else lm.single_token(token)
    trace = tracing(settings.prompt, edits=settings.edits).showing(settings.show_unlearned)
    trace.logits(settings.position)
    position = settings.position % len(trace)
    question = trace.question(target, settings.against, position, alone=settings.alone)
    basis = basis_or_default(lm, settings.basis, "final")
    shown = ShownPosition(trace, position, question, basis, settings.top, settings.order, index)
    shown.read_layers()
    return shown


def _common(at: ShownPosition, settings: TraceSettings, tracing: Tracing) -> dict[str, Any]:
    """Return the fields that the views of `trace` and `explain` have in common."""
    trace, plain = at.trace, None
    if settings.edits:
        plain = tracing(settings.prompt, edits=()).showing(settings.show_unlearned)
    target, against = question_tokens(trace.lm, at.question, at.position)
    return {
        "provenance": _provenance(at, settings).to_dict(),
        "model": trace.lm.name,
        "sizes": sizes_of(trace.lm),
        "prompt": settings.prompt,
        "edits": [edit_in_words(edit, trace.lm, len(trace)) for edit in settings.edits],
        "tokens": prompt_tokens(trace),
        "roles": prompt_roles(trace),
        "position": at.position,
        "basis": settings.basis,
        "show_unlearned": settings.show_unlearned,
        "hidden": 0 if trace.hidden is None else int(trace.hidden.sum()),
        "prediction": at.prediction(),
        "without_edits": None if plain is None else dataclasses.replace(at, trace=plain).prediction(),
        "target": target,
        "against": against,
    }


def _provenance(at: ShownPosition, settings: TraceSettings) -> Provenance:
    return dataclasses.replace(at.trace.provenance, basis=settings.basis, seed=settings.seed)


def _grid(at: ShownPosition, point: StreamPoint, layers: Sequence[int]) -> GridView:
    at.read_everywhere(point)
    columns = [at.column(point, position=n) for n in range(len(at.trace))]
    rows = [[column[n] for column in columns] for n in layers]
    return GridView(point, list(layers), rows, at.trace.massive_layers(point))

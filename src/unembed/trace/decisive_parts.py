"""Find the components that decide a prediction.

Direct attribution selects candidates; then each of them is removed alone, and the change of the prediction is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, cast

from unembed.errors import UnembedError
from unembed.trace.prompt_heads import HeadEffects, head_effects
from unembed.trace.removals import Part, PartKind, ReadBy, Removal, Removals
from unembed.trace.view import HeadEffectsView, HeadEffectView, HeadSource, SubUpdateView

if TYPE_CHECKING:
    from unembed.logit_attribution import Attribution
    from unembed.trace.memory_effects import MemoryEffects
    from unembed.trace.question import Question
    from unembed.trace.trace import Trace

HEADS = 8
"""Number of heads that are listed, and removed one at a time."""
MEMORIES = 10
"""Largest number of memories that are removed one at a time."""
_LAYERS = 4
_SOURCES = 3
"""Number of source tokens listed for each head. For the heads that matter most, they are removed one at a time."""
_HEADS_SPLIT = 3
_READS = 0.5
"""A head counts as reading a token if removing this source alone removes at least this share of the head's effect."""


@dataclass(frozen=True, eq=False)
class DecisiveParts:
    """The heads with the largest effects, the components that were removed, and what each removal changed."""

    heads: HeadEffectsView | None
    removals: list[Removal] = field(default_factory=list[Removal])
    sources: dict[tuple[int, int], HeadSource] = field(default_factory=dict[tuple[int, int], HeadSource])
    """For the heads that matter most: the source token from which most of the head's effect comes."""
    reading_themselves: frozenset[tuple[int, int]] = frozenset()
    """Heads most of whose effect comes from attention to their own position."""

    def measured(self, kind: str, layer: int, index: int) -> dict[str, Any]:
        """Return what removing a component (head, memory ...) changed; empty if it was not removed.

        The keys are names of fields of `SubUpdateView` and `HeadEffectView`.
        """
        found = next((one for one in self.removals if one.part.key == (kind, layer, index)), None)
        return {} if found is None else {"without": found.probability, "moved": found.tokens}

    def with_measured(self, rows: Sequence[SubUpdateView]) -> list[SubUpdateView]:
        """Add to each memory that was removed what its removal changed."""
        return [replace(row, **self.measured("memory", row.layer, row.index)) for row in rows]


def decisive_parts(
    trace: Trace,
    question: Question,
    position: int,
    memories: MemoryEffects | None,
    by_component: Attribution,
    *,
    chosen_pair: bool = False,
) -> DecisiveParts:
    """Return the heads with the largest effects, and what changes without each of the largest components.

    Args:
        position: counted from 0.
        memories: the effects of memories on the logit difference; None if the model has no memories.
        by_component: the attribution by component.
        chosen_pair: rank removals by the difference of the two logits instead of the token's log-odds.
    """
    effects = head_effects(trace, question, position)
    listed = [] if effects is None else effects.largest(HEADS)
    heads = None if effects is None else _view(trace, effects, listed)
    parts = list(_parts(effects, listed, memories, by_component))
    if not parts:
        return DecisiveParts(heads)
    try:
        removals = Removals(trace, question, position, chosen_pair=chosen_pair)
        found = removals.without(parts)
    except UnembedError:  # the model cannot be rerun with a part replaced
        return DecisiveParts(heads)
    sources = {} if effects is None else _read(trace, effects, found, removals)
    themselves = frozenset(() if effects is None else (effects.places[n] for n in listed if effects.reads_itself(n)))
    done = DecisiveParts(heads, found, sources, themselves)
    if heads is not None:
        rows = [replace(row, **done.measured("head", row.layer, row.head)) for row in heads.rows]
        done = replace(done, heads=replace(heads, rows=rows))
    return done


def _view(trace: Trace, effects: HeadEffects, listed: Sequence[int]) -> HeadEffectsView:
    rows = [
        HeadEffectView(*effects.places[n], float(effects.effects[n]), effects.sources(trace, n, _SOURCES))
        for n in listed
    ]
    rest = float(effects.effects.sum()) - sum(row.effect for row in rows)
    return HeadEffectsView(rows, len(effects.places) - len(rows), rest)


def _parts(
    effects: HeadEffects | None, listed: Sequence[int], memories: MemoryEffects | None, by_component: Attribution
) -> Iterator[Part]:
    """Yield candidates for removal, alternating between heads, memories, and whole components of layers.

    Components of layers are attention, other mixers and FFNs, the largest contributions first. Heads and memories come
    in the order in which they are listed.
    """
    heads = [] if effects is None else [Part("head", *effects.places[n], float(effects.effects[n])) for n in listed]
    rows = [] if memories is None else memories.rows[:MEMORIES]
    of_memories = [Part("memory", row.layer, row.index, row.score or 0.0) for row in rows]
    components = [
        Part(cast("PartKind", kind), row.layer, None, row.contribution)
        for row in sorted(by_component.rows, key=lambda row: -row.contribution)
        if row.layer is not None and (kind := row.label.split()[0]) in ("attention", "mixer", "ffn")
        if " bias" not in row.label
    ]
    for several in zip_longest(heads, of_memories, components[:_LAYERS]):
        yield from (one for one in several if one is not None)


def _read(
    trace: Trace, effects: HeadEffects, found: Sequence[Removal], removals: Removals
) -> dict[tuple[int, int], HeadSource]:
    """Return, for the heads that matter most, the one source token from which most of the head's effect comes."""
    if effects.by_source is None:
        return {}
    heads = sorted((one for one in found if one.part.kind == "head" and one.effect > 0), key=lambda one: -one.effect)
    read: dict[tuple[int, int], HeadSource] = {}
    chosen = [(head, (head.part.layer, cast("int", head.part.index))) for head in heads[:_HEADS_SPLIT]]
    numbers = [effects.places.index(place) for _, place in chosen]
    sources = [effects.sources(trace, n, _SOURCES) for n in numbers]
    tried = [
        ReadBy(*place, effects.weights(n), effects.values(n), [one.position for one in listed])
        for (_, place), n, listed in zip(chosen, numbers, sources, strict=True)
    ]
    for (head, place), listed, measured in zip(chosen, sources, removals.source_effects(tried), strict=True):
        if measured is not None:
            effect, source = max(zip(measured, listed, strict=True), key=lambda pair: pair[0])
            if effect >= _READS * head.effect:
                read[place] = source
    return read

"""Collect what is shown of one position of a trace: its layers, memories and attributions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from unembed.errors import PointMissing, Unsupported
from unembed.memories.usual_coefficients import usual_coefficients
from unembed.models.named_tokens import Candidate, candidates
from unembed.names import Basis, By, StreamPoint
from unembed.results.lists import numbers
from unembed.trace.decisive_parts import MEMORIES, DecisiveParts, decisive_parts
from unembed.trace.view import AttributionView, LayerView, MemoriesView, SubUpdateView, TriggerView
from unembed.trace.words import event_views

if TYPE_CHECKING:
    from unembed.index.index import Index
    from unembed.memories.top_sub_updates import SubUpdate
    from unembed.trace.memory_effects import MemoryEffects, MemoryOrder
    from unembed.trace.question import Question
    from unembed.trace.trace import Trace

_READ_ANYWAY = 10
"""Number of tokens that a trace reads at every capture point; shorter lists are taken from these."""
_TRIGGER_TOKENS = 24
"""Number of tokens shown before a memory's top trigger, the corpus position where its coefficient is largest."""


@dataclasses.dataclass(frozen=True)
class ShownPosition:
    """One position of a trace, the question about its prediction, and how the stream is read as tokens.

    Attributes:
        position: from 0.
        top: number of tokens listed at each capture point of the stream.
        order: the quantity by which memories are ranked.
        index: an index of the model, for the corpus position at which each memory's coefficient is largest.
    """

    trace: Trace
    position: int
    question: Question
    basis: Basis
    top: int
    order: MemoryOrder
    index: Index | None

    @property
    def _top_read(self) -> int:
        return max(self.top, _READ_ANYWAY)

    def read_everywhere(self, point: StreamPoint) -> None:
        """Read all positions at a capture point in one matrix product; later calls of `column` use the result."""
        self.trace.read(point, self._top_read, self.basis)

    def read_layers(self) -> None:
        """Read every layer at the position in one matrix product; later calls of `column` and `layers` use it."""
        if self.basis == self.trace.basis and self._top_read == _READ_ANYWAY:
            self.trace.read_column(self.position)

    def column(
        self, point: StreamPoint, basis: Basis | None = None, position: int | None = None
    ) -> list[list[Candidate]]:
        """Return, for each layer, the top tokens at one position, best first."""
        position = self.position if position is None else position
        found = self.trace.readings(point, self._top_read, basis or self.basis, position)
        cells = [numbers(part[:, 0, : self.top]) for part in (found.ids, found.probabilities, found.logits)]
        texts = [layer[0] for layer in found.tokens]
        return [
            [Candidate(i, text, p, logit) for i, p, logit, text in zip(*cell, strict=False)]
            for cell in zip(*cells, texts, strict=True)
        ]

    def prediction(self) -> list[Candidate]:
        """Return the most likely next tokens; the model's prediction is first, even if lists leave that token out."""
        listed = self.column("resid_post", basis="final")[-1]
        first = int(self.trace.prediction[self.position])
        if listed[0].id == first:
            return listed
        own = candidates(self.trace.lm, self.trace.logits(self.position), [first])
        return [*own, *listed][: self.top]

    def layers(self, layers: Sequence[int], updates: dict[int, list[SubUpdateView]]) -> list[LayerView]:
        """Return, for each layer, its top tokens, the target's ranks, its events and its memories."""

        def at(point: StreamPoint) -> tuple[list[list[Candidate]], list[int], list[float]]:
            ranks, probabilities = self.trace.ranks_and_probabilities(
                self.question.token, point, self.basis, position=self.position
            )
            return self.column(point), numbers(ranks[:, 0]), numbers(probabilities[:, 0])

        (before, rank_before, p_before), (after, rank_after, p_after) = at("resid_pre"), at("resid_post")
        try:
            middle, rank_middle, p_middle = at("resid_mid")
        except PointMissing:
            # In parallel and attention-only blocks there is no residual stream between attention and FFN.
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

    def lists_first(self, point: StreamPoint, layer: int) -> bool:
        """Return True if the first listed token has the highest logit of all tokens, including unlisted ones."""
        found = self.trace.read(point, self._top_read, self.basis, self.position)
        return float(found.logits[layer, 0, 0]) >= float(found.highest_hidden[layer, 0])

    def closer(self, one: LayerView, heads: bool) -> LayerView:
        """Return one layer in more detail: add the rank that each listed token had before the update.

        With `heads`, also add what each head writes.
        """
        lists: dict[StreamPoint, list[Candidate]] = (
            {"resid_pre": one.after} if one.middle is None else {"resid_pre": one.middle, "resid_mid": one.after}
        )
        ids = [[candidate.id for candidate in listed] for listed in lists.values()]
        ranks = numbers(self.trace.ranks_among(ids, list(lists), one.layer, self.position, self.basis))
        closer = dataclasses.replace(one, middle_from=None if one.middle is None else ranks[0], after_from=ranks[-1])
        mixer = self.trace.lm.structure.blocks[one.layer].mixer
        if not heads or mixer is None or not mixer.n_heads:
            return closer
        token, against = self.question.token, self.question.against
        added = self.trace.head_updates(one.layer, self.position, token, against, top_tokens=self._top_read)
        return dataclasses.replace(closer, heads=list(added))

    def sub_updates(self, layers: Sequence[int], memories: int) -> dict[int, list[SubUpdateView]]:
        """Return, by layer, the memories that add most to the logit difference.

        Empty for layers without memories.
        """
        if memories == 0:
            return {}
        order, k = self.order, self._top_read
        try:
            found = self.trace.memory_effects_by_layer(
                layers, self.question, self.position, memories, index=self.index, order=order, top_tokens=k
            )
        except Unsupported:  # perhaps only some layers have no memories, so each is tried alone
            each = (layers[i : i + 1] for i in range(len(layers))) if len(layers) > 1 else ()
            return {n: rows for one in each for n, rows in self.sub_updates(one, memories).items()}
        return {n: self._with_triggers(rows) for n, rows in zip(layers, found, strict=True)}

    def effects(self, layers: Sequence[int] | None, memories: int) -> MemoryEffects | None:
        """Return what the memories add to the logit difference; None if the layers have no memories."""
        n, order, k = max(1, memories), self.order, self._top_read
        try:
            return self.trace.memory_effects(
                self.question, self.position, n, layers=layers, index=self.index, order=order, top_tokens=k
            )
        except (PointMissing, Unsupported):
            return None

    def decisive_parts(self, chosen_pair: bool) -> DecisiveParts:
        """Return the heads with the largest effects, and what removing components one at a time changes.

        Args:
            chosen_pair: rank removals by the difference of the two logits instead of the token's log-odds.
        """
        by_effect = dataclasses.replace(self, order="effect")
        effects = by_effect.effects(None, MEMORIES)
        by_component = self.trace.attribution(self.question.token, self.position, self.question.against)
        return decisive_parts(self.trace, self.question, self.position, effects, by_component, chosen_pair=chosen_pair)

    def memories(self, effects: MemoryEffects, parts: DecisiveParts) -> MemoriesView:
        """Return memories with their effects, top triggers, and the target's probability when the memory is ablated.

        A top trigger is the corpus position at which the memory's coefficient is largest.
        """
        rows, always_on = self._with_triggers(effects.rows), self._with_triggers(effects.always_on)
        return MemoriesView(parts.with_measured(rows), always_on, effects.others, effects.others_effect, effects.total)

    def attribution(self, by: By, writers: int) -> AttributionView:
        """Split the logit, or the logit difference, by one kind of component.

        If there are at most `writers` components and none is a memory that is always on, all are listed, in the order
        of the forward pass; otherwise those with the largest contributions. Memories that are always on are listed
        separately.
        """
        lm, target, against = self.trace.lm, self.question.token, self.question.against
        found = self.trace.attribution(target, self.position, against, by)
        apart = torch.zeros(len(found), dtype=torch.bool)
        usual = usual_coefficients(lm, self.index).always_on if by == "memory" else {}
        for layer, always_on in usual.items():
            memories = (found.layer == layer) & (found.index >= 0)
            apart[memories] = always_on[found.index[memories]]
        n_apart = int(apart.sum())
        few = len(found) <= writers and not n_apart
        rows = found.rows if few else found.top(writers, ~apart)
        on = found.top(n_apart, apart) if n_apart else []
        texts = lm.token_strings([target] if against is None else [target, against])
        return AttributionView(
            by=by,
            id=target,
            token=texts[0],
            against=None if against is None else texts[1],
            logit=found.logit,
            total=found.total,
            error=found.error,
            rows=list(rows),
            others=len(found) - len(rows) - len(on),
            others_contribution=found.total - sum(row.contribution for row in (*rows, *on)),
            always_on=list(on),
        )

    def _with_triggers(self, rows: Sequence[SubUpdate]) -> list[SubUpdateView]:
        return [SubUpdateView(**vars(row), trigger=self._trigger(row)) for row in rows]

    def _trigger(self, row: SubUpdate) -> TriggerView | None:
        """Return the corpus position of a memory's largest coefficient that has the same sign as here.

        None if the index has no positions for that sign, or lacks the layer.
        """
        pole = "negative" if row.coefficient < 0 else "positive"
        if self.index is None or pole not in self.index.poles or not self.index.manifest.layers[row.layer]:
            return None
        found = list(self.index.triggers(row.layer, row.index, 1, pole=pole, context=_TRIGGER_TOKENS).rows())
        names = [field.name for field in dataclasses.fields(TriggerView)]
        return TriggerView(**{name: found[0][name] for name in names}) if found else None

"""One prompt in full: the stream before and after every FFN, the sub-updates behind it, events, attributions."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from unembed.attention.behaviour.head_outputs import HeadUpdate, head_updates
from unembed.causality.effects import total_effects
from unembed.gallery import MemoryDescriptions, memory_descriptions
from unembed.logit_attribution import Attribution, attribution, points_needed
from unembed.memories.events import Event
from unembed.memories.sub_updates import Dominant, dominant
from unembed.memories.top_sub_updates import Ends, SubUpdate, top_sub_updates
from unembed.names import By, StreamPoint
from unembed.results import Displayed, Records, Table
from unembed.stream.run import position_of
from unembed.trace.described_memories import DescribedMemory, described_memories
from unembed.trace.memory_effects import MemoryEffects, MemoryOrder, ScoredMemories
from unembed.trace.prompt_events import prompt_events, prompt_rank_changes
from unembed.trace.question import Question, question
from unembed.trace.readings import TOP, PromptReadings
from unembed.trace.tables import described_records, event_records, head_update_records, sub_update_records
from unembed.trace.usual_coefficients import usual_coefficients
from unembed.validation import as_tuple, positive_int

if TYPE_CHECKING:
    from unembed.index.index import Index


class Trace(PromptReadings, Displayed):
    """A prompt under the model, with edits if there are any. Everything is computed once, on first use."""

    _scored: tuple[tuple[object, ...], ScoredMemories] | None = None
    """The scored memories of the last question, with its arguments: several lists of one view are made from them."""
    _ends: tuple[int, dict[tuple[int, int], Ends]] | None = None
    """The tokens of the values read so far, which are the same at every position, and how many of each."""
    _described: tuple[Path | None, MemoryDescriptions] | None = None
    """The last descriptions, with the folder of their index: finding them reads a sample of the weights."""

    def showing(self, unlearned: bool) -> Trace:
        """This trace with unlearned tokens listed and ranked, or left out. The model is not run again."""
        if unlearned == self.show_unlearned:
            return self
        other = copy(self)
        other.show_unlearned, other._read, other._readings, other._scored, other._ends = unlearned, {}, {}, None, None
        for name in ("provenance", "_events"):
            vars(other).pop(name, None)
        return other

    def __repr__(self) -> str:
        answer, p = int(self.prediction[-1]), float(self.logits(-1).float().softmax(-1).max())
        edits = f", {len(self.edits)} edits" if self.edits else ""
        return (
            f"Trace of {len(self)} tokens on {self.lm.name} ({self.lm.n_layers} layers{edits}): predicts "
            f"{self.lm.token_strings([answer])[0]!r} ({p:.0%})\n"
            "  .readings() .sub_updates(layer) .events() .attribution(token) .to_table()"
        )

    def to_table(self) -> Table:
        """The last position by layer: the top token of each reading, and the rank of the prediction, from 1."""
        columns: dict[str, list[object]] = {"layer": list(range(self.lm.n_layers))}
        points: list[StreamPoint] = ["resid_pre", "resid_post"]
        if self.before_ffn == "resid_mid":
            points.insert(1, "resid_mid")
        names = {"resid_pre": "before", "resid_mid": "after_attention", "resid_post": "after_ffn"}
        for point in points:
            columns[f"{names[point]}_token"] = [layer[-1][0] for layer in self.readings(point).tokens]
        columns["rank"] = self.prediction_ranks()[:, -1].tolist()
        text = self.lm.token_strings([int(self.prediction[-1])])[0]
        return Table(f"Top tokens after the last token, and the rank of {text!r}", columns, self.provenance)

    def dominant(self, top: int = TOP) -> list[Dominant]:
        """For every layer, the dominant sub-updates of every position."""
        return [
            dominant(self.run.at("coefficients", n)[0], self.lm.weights.W_out[n], top) for n in range(self.lm.n_layers)
        ]

    def sub_updates(
        self,
        layer: int,
        position: int = -1,
        top: int = TOP,
        token: str | int | None = None,
        *,
        top_tokens: int = 10,
    ) -> Records[SubUpdate]:
        """The dominant sub-updates of one FFN update, largest contribution first.

        Args:
            position: the position; the last by default.
            token: a token to score each for.
            top_tokens: how many tokens of each value to list.

        Raises:
            Unsupported: the model has no memories.
            OutOfRange: no such layer or position.
        """
        return self.sub_updates_of([layer], position, top, token, top_tokens=top_tokens)[0]

    def sub_updates_of(
        self,
        layers: Sequence[int],
        position: int = -1,
        top: int = TOP,
        token: str | int | None = None,
        *,
        top_tokens: int = 10,
    ) -> list[Records[SubUpdate]]:
        """What `sub_updates` returns, for several layers at once: all values are read in one pass."""
        column = position_of(self.run, position)
        found = top_sub_updates(
            self.lm, self.run, layers, column, top, token, k=top_tokens, show_unlearned=self.show_unlearned
        )
        return [
            sub_update_records(f"Sub-updates of layer {n} at position {column}", rows, self.provenance)
            for n, rows in zip(layers, found, strict=True)
        ]

    def question(
        self,
        token: str | int | None = None,
        against: str | int | None = None,
        position: int = -1,
        *,
        alone: bool = False,
    ) -> Question:
        """The question why one token rather than another is predicted; by default the top token against the runner-up.

        Args:
            token: the token to explain.
            against: the token it is compared with; the most likely other token when None.
            position: whose prediction.
            alone: explain the token's logit alone.

        Raises:
            InvalidInput: both are the same token.
            NotOneToken: a text is not a single token.
            OutOfRange: no such position.
        """
        return question(self.lm, self.logits(position), token, against, alone=alone, hidden=self.hidden)

    def memory_effects(
        self,
        question: Question | None = None,
        position: int = -1,
        top: int = TOP,
        *,
        layers: Sequence[int] | None = None,
        index: Index | None = None,
        order: MemoryOrder = "effect",
        top_tokens: int = 10,
    ) -> MemoryEffects:
        """The memories (FFN neurons) with the largest effects on a question; those always on are listed separately.

        Args:
            question: from `question`; the prediction against its runner-up when None.
            position: whose prediction.
            layers: only these; all that have memories when None.
            index: an index of the model, which records how often and how strongly each memory fires; when None, a
                sample of the shipped text is measured.
            order: the quantity by which the list is ranked: "effect"; "deviation", the effect beyond that of the mean
                coefficient (mean ablation); "size" or "coefficient".
            top_tokens: how many tokens of each value to list.

        Raises:
            Unsupported: no layer, or one of those chosen, has memories.
            OutOfRange: no such layer or position.
        """
        chosen = self._with_memories() if layers is None else [self.lm.layer(n) for n in layers]
        if not chosen:
            self.lm.feed_forward(0)  # raises with the reason
        found = self._scored_memories(chosen, question, position, index, top_tokens).largest(top, order)
        return replace(found, provenance=self.lm.provenance(basis="frozen", notes=self.provenance.notes))

    def memory_effects_by_layer(
        self,
        layers: Sequence[int],
        question: Question | None = None,
        position: int = -1,
        top: int = TOP,
        *,
        index: Index | None = None,
        order: MemoryOrder = "effect",
        top_tokens: int = 10,
    ) -> list[list[SubUpdate]]:
        """By layer, the memories with the largest effects on a question, then the same number that are always on.

        The arguments as for `memory_effects`; `top` counts the memories of one layer.

        Raises:
            Unsupported: one of the layers has no memories.
            OutOfRange: no such layer or position.
        """
        if not (chosen := [self.lm.layer(n) for n in as_tuple("layers", layers)]):
            return []
        return self._scored_memories(chosen, question, position, index, top_tokens).largest_by_layer(top, order)

    def memory_effect(
        self,
        layer: int,
        memory: int,
        question: Question | None = None,
        position: int = -1,
        *,
        index: Index | None = None,
        top_tokens: int = 10,
    ) -> SubUpdate:
        """One memory's sub-update at a position, silent or not, with its effect on a question.

        The other arguments as for `memory_effects`.

        Raises:
            Unsupported: the layer has no memories.
            OutOfRange: no such memory or position.
        """
        layer, memory = self.lm.memory(layer, memory)
        return self._scored_memories([layer], question, position, index, top_tokens).one(layer, memory)

    def _scored_memories(
        self, layers: Sequence[int], question: Question | None, position: int, index: Index | None, top_tokens: int
    ) -> ScoredMemories:
        question = question or self.question(position=position)
        column = position_of(self.run, position)
        key = (tuple(layers), question, column, index, top_tokens)
        if self._scored is None or self._scored[0] != key:
            if self._ends is None or self._ends[0] != top_tokens:
                self._ends = top_tokens, {}
            scored = ScoredMemories(
                self.lm,
                self.run,
                question,
                column,
                layers,
                usual_coefficients(self.lm, index),
                top_tokens=top_tokens,
                show_unlearned=self.show_unlearned,
                read=self._ends[1],
            )
            self._scored = key, scored
        return self._scored[1]

    def _with_memories(self) -> list[int]:
        return [n for n in range(self.lm.n_layers) if self.run.has("coefficients", n)]

    def described_memories(
        self, token: str | int | None = None, position: int = -1, top: int = 3, *, index: Index | None = None
    ) -> Records[DescribedMemory]:
        """Memories (FFN neurons) with a description that promote a token most, the largest effect first.

        The effect is the memory's contribution to the token's logit minus that to the average token's. Descriptions are
        those saved with `index` (see `Index.memories`), or those of an embedded model; without either, none is listed.

        Args:
            token: the predicted token when None.
            position: whose prediction.
            top: how many to list, at most.
            index: an index of the model.

        Raises:
            NotOneToken: the text is not a single token.
            OutOfRange: no such position.
        """
        column = position_of(self.run, position)
        target = int(self.prediction[column]) if token is None else self.lm.single_token(token)
        folder = None if index is None else index.path
        if self._described is None or self._described[0] != folder:
            self._described = folder, memory_descriptions(self.lm, folder)
        descriptions = self._described[1]
        top = positive_int("top", top)
        found = described_memories(self.lm, self.run, target, column, self._with_memories(), descriptions, top)
        title = f"Described memories that promote {self.lm.token_strings([target])[0]!r}"
        return described_records(title, found, self.provenance)

    @cached_property
    def _events(self) -> list[Event]:
        return prompt_events(self)

    def events(self, position: int | None = None) -> Records[Event]:
        """Saturation and elimination events, at one position or at all.

        Raises:
            Unsupported: the model has no FFN.
            OutOfRange: no such position.
        """
        if all(block.feed_forward is None for block in self.lm.structure.blocks):
            self.lm.feed_forward(0)  # raises with the reason
        found = self._events
        if position is not None:
            column = position_of(self.run, position)
            found = [e for e in found if e.position == column]
        return event_records("Saturation and elimination events", self.lm, found, self.provenance)

    def rank_changes(self, token: str | int | None = None, position: int | None = None) -> Records[Event]:
        """Updates across which a token's rank at least halves or doubles, separately for attention and the FFN.

        Args:
            token: the token to follow; each position's own prediction when None.
            position: only this position.

        Returns:
            Rank changes by position and layer; none where attention and FFN of a block are added at once.

        Raises:
            OutOfRange: no such position.
        """
        column = None if position is None else position_of(self.run, position)
        target = None if token is None else self.lm.single_token(token)
        found = prompt_rank_changes(self, target, column)
        return event_records("Rank changes", self.lm, found, self.provenance)

    def head_updates(
        self,
        layer: int,
        position: int = -1,
        token: str | int | None = None,
        against: str | int | None = None,
        *,
        top_tokens: int = 10,
    ) -> Records[HeadUpdate]:
        """What each head of a layer writes at a position, the longest vector first.

        Args:
            position: the position; the last by default.
            token: a token to score each for.
            against: score the difference of the token's logit to this one's.
            top_tokens: how many tokens to list.

        Raises:
            InvalidInput: both tokens are the same.
            OutOfRange: no such layer or position.
        """
        run, column = self.run_with(("z",)), position_of(self.run, position)
        scale = self.scale[column]
        hidden = not self.show_unlearned
        found = head_updates(self.lm, run, layer, column, token, scale, against, k=top_tokens, hide_unlearned=hidden)
        return head_update_records(f"What the heads of layer {layer} add at position {column}", found, self.provenance)

    def attribution(
        self, token: str | int, position: int = -1, against: str | int | None = None, by: By = "component"
    ) -> Attribution:
        """The logit of a token, or the difference of two, as the sum of its writers' contributions."""
        run = self.run_with(points_needed(self.lm, by, self.edits))
        found = attribution(self.lm, run, token, position, against, by)
        return replace(
            found,
            provenance=self.lm.provenance(basis="frozen", notes=self.provenance.notes),
            measure_effects=lambda one, rows: total_effects(self.lm, self.run, one, rows, self.edits),
        )

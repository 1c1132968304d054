"""Find the memories (FFN neurons) behind a prediction: what each adds, its effect on the logits, its description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from unembed.gallery import MemoryDescriptions, memory_descriptions
from unembed.logit_attribution import pair
from unembed.memories.top_sub_updates import Ends, SubUpdate, top_sub_updates
from unembed.memories.usual_coefficients import usual_coefficients
from unembed.results import Records, quoted
from unembed.stream.capture_points import has_point
from unembed.stream.run import position_of
from unembed.trace.described_memories import DescribedMemory, described_memories
from unembed.trace.memory_effects import MemoryEffects, MemoryOrder, ScoredMemories
from unembed.trace.question import Question
from unembed.trace.readings import TOP, PromptReadings
from unembed.trace.tables import described_records, sub_update_records
from unembed.validation import as_tuple, positive_int

if TYPE_CHECKING:
    from unembed.index.index import Index


class PromptMemories(PromptReadings):
    """One prompt run through the model, with the memories behind its predictions."""

    _scored: tuple[tuple[object, ...], ScoredMemories] | None = None
    """The arguments and result of the last scoring of memories, cached because several lists of one view use them."""
    _ends: tuple[int, dict[tuple[int, int], Ends]] | None = None
    """Number of tokens listed per value vector, and the tokens of all value vectors read so far."""
    _described: tuple[Path | None, MemoryDescriptions] | None = None
    """The folder of an index (None without an index) and the descriptions of memories, cached because loading them
    reads a sample of the model's weights."""

    def question(
        self,
        token: str | int | None = None,
        against: str | int | None = None,
        position: int = -1,
        *,
        alone: bool = False,
    ) -> Question:
        """Return a `Question`: why is one token predicted and not another? By default, the top token and the runner-up.

        Args:
            token: the token to explain; the most likely one when None.
            against: the token it is compared with; None for the runner-up, the most likely other token
                (tokens that lists leave out do not count).
            position: the position whose prediction is explained.
            alone: explain the token's logit itself, not a difference of two logits; `against` is then ignored.

        Raises:
            InvalidInput: `token` and `against` are the same token.
            NotOneToken: a text is not a single token.
            OutOfRange: no such position.
        """
        logits = self.logits(position)
        target = int(logits.argmax()) if token is None else self.lm.single_token(token)
        if alone:
            return Question(target, None)
        if against is None:
            others = logits.clone()
            others[target] = -torch.inf
            if self.hidden is not None:
                others[self.hidden.to(others.device)] = -torch.inf
            against = int(others.argmax())
        return Question(*pair(self.lm, target, against))

    def sub_updates(
        self,
        layer: int,
        position: int = -1,
        top: int = TOP,
        token: str | int | None = None,
        *,
        top_tokens: int = 10,
    ) -> Records[SubUpdate]:
        """Return a layer's dominant sub-updates m_i v_i at a position: those with the largest norm, largest first.

        Args:
            position: the position; the last by default.
            token: if given, each memory gets a score for this token.
            top_tokens: number of tokens listed for each value vector.

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
        """Return what `sub_updates` returns for several layers at once, reading all value vectors in one pass."""
        column = position_of(self.run, position)
        found = top_sub_updates(
            self.lm, self.at(column), layers, 0, top, token, k=top_tokens, show_unlearned=self.show_unlearned
        )
        return [
            sub_update_records(f"Sub-updates of layer {n} at position {column}", rows, self.provenance)
            for n, rows in zip(layers, found, strict=True)
        ]

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
        """Return the memories (FFN neurons) that add most to a logit difference; those always on are listed separately.

        Args:
            question: the tokens that are compared, from `question`; the prediction and its runner-up when None.
            position: the position whose prediction is explained.
            layers: only these; all that have memories when None.
            index: an index of the model, which records how often and how strongly each memory fires; when None, a
                sample of the shipped text is measured.
            order: the quantity by which the list is ranked: "effect"; "deviation", the effect beyond that of the mean
                coefficient (mean ablation); "size", the norm of coefficient times value vector; or "coefficient", its
                absolute value.
            top_tokens: number of tokens listed for each value vector.

        Raises:
            Unsupported: no layer, or one of those chosen, has memories.
            OutOfRange: no such layer or position.
        """
        chosen = self._with_memories() if layers is None else [self.lm.layer(n) for n in layers]
        if not chosen:
            self.lm.feed_forward(0)  # raises an error with the reason, such as that no layer has an FFN
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
        """Return, by layer, the memories that add most to a logit difference, then up to `top` that are always on.

        The arguments are those of `memory_effects`; `top` is the number of memories listed for each layer.

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
        """Return one memory's sub-update at a position, with its effect on a logit difference.

        This also works for a silent memory (coefficient 0).

        For the other arguments see `memory_effects`.

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
                self.at(column),
                question,
                layers,
                usual_coefficients(self.lm, index),
                top_tokens=top_tokens,
                show_unlearned=self.show_unlearned,
                read=self._ends[1],
            )
            self._scored = key, scored
        return self._scored[1]

    def _with_memories(self) -> list[int]:
        return [n for n in range(self.lm.n_layers) if has_point(self.lm, "coefficients", n)]

    def described_memories(
        self, token: str | int | None = None, position: int = -1, top: int = 3, *, index: Index | None = None
    ) -> Records[DescribedMemory]:
        """Return the memories (FFN neurons) with a description that promote a token most, largest effect first.

        The effect is the memory's contribution to the token's logit minus that to the average token's. Descriptions are
        those saved with `index` (see `Index.memories`), or those that ship with the model; without either, no memory is
        listed.

        Args:
            token: the promoted token; the predicted token when None.
            position: the position whose prediction is explained.
            top: largest number of memories listed.
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
        here = self.at(column)
        found = described_memories(self.lm, here, target, self._with_memories(), descriptions, top)
        title = f"Described memories that promote {quoted(self.lm.token_strings([target])[0])}"
        provenance = self.provenance
        if found and descriptions.other_lens is not None:
            provenance = replace(provenance, notes={**provenance.notes, "descriptions": descriptions.other_lens})
        return described_records(title, found, provenance)

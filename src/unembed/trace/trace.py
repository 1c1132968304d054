"""One prompt in full: the stream before and after every FFN, the sub-updates behind it, events, attributions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.attention.head_outputs import HeadUpdate, head_updates
from unembed.causality.effects import total_effects
from unembed.errors import InvalidInput, Unsupported
from unembed.gallery import memory_descriptions
from unembed.lens import Reading
from unembed.logit_attribution import Attribution, attribution, points_needed
from unembed.memories.events import Event
from unembed.memories.sub_updates import Dominant, dominant
from unembed.memories.top_sub_updates import SubUpdate, top_sub_updates
from unembed.models.decoder import Decoder
from unembed.names import Basis, By, StreamPoint
from unembed.results import Displayed, Provenance, Records, Table
from unembed.stream.interventions import Edits, as_edits
from unembed.stream.run import Run, Tokens, position_of, prepare, run
from unembed.trace.described_memories import DescribedMemory, described_memories
from unembed.trace.memory_effects import MemoryEffects, MemoryOrder, ScoredMemories
from unembed.trace.prompt_events import prompt_events, prompt_rank_changes
from unembed.trace.question import Question, question
from unembed.trace.readings import TOP, Readings, StreamReadings
from unembed.trace.tables import EntropyAndKL, described_records, event_records, head_update_records, sub_update_records
from unembed.trace.usual_coefficients import usual_coefficients
from unembed.validation import as_str, as_tuple, positive_int

if TYPE_CHECKING:
    from unembed.index.index import Index


class Trace(Displayed):
    """A prompt under the model, with edits if there are any. Everything is computed once, on first use."""

    def __init__(self, lm: Decoder, tokens: Tokens, edits: Edits = (), *, show_unlearned: bool = False) -> None:
        """Run the prompt and capture the stream and the coefficients.

        Args:
            tokens: one prompt.
            edits: changes to make in the run.
            show_unlearned: also list and rank tokens that the model never learned; by default they are left out of
                every list, rank and event. Probabilities are those of the whole vocabulary either way.

        Raises:
            InvalidInput: the prompt is empty, too long, or more than one.
            Unsupported: the model has no layers.
        """
        if not lm.n_layers:
            raise Unsupported(
                f"a trace of {lm.name}",
                why="it has no layers: its logits are those of each token alone",
                instead="Use unembed.circuits(lm).direct_path()",
            )
        self.lm, self.edits, self.show_unlearned = lm, as_edits(edits), show_unlearned
        ids, mask = prepare(lm, tokens)
        if ids.shape[0] != 1:
            raise InvalidInput(f"{ids.shape[0]} prompts", why="a trace shows one", instead="Trace them one by one")
        self.tokens: Int[Tensor, " pos"] = ids[0]
        self.parallel = any(b.parallel for b in lm.structure.blocks)
        has_ffn = all(b.feed_forward is not None for b in lm.structure.blocks)
        self._before: StreamPoint = "resid_mid" if has_ffn and not self.parallel else "resid_pre"
        # The points for an attribution by component too: most traces are used for one, and a second pass costs more.
        points = {*points_needed(lm, "component", self.edits), self._before}
        if any(b.feed_forward is not None and b.feed_forward.has_memories for b in lm.structure.blocks):
            points.add("coefficients")
        self.run: Run = run(lm, ids, sorted(points), self.edits, attention_mask=mask)
        self._runs: dict[str, Run] = {}
        self._readings: dict[tuple[str, int, str], Readings] = {}
        self._stream = self._read_without(self._hidden)

    def showing(self, unlearned: bool) -> Trace:
        """This trace with unlearned tokens listed and ranked, or left out. The model is not run again."""
        if unlearned == self.show_unlearned:
            return self
        other = copy(self)
        other.show_unlearned, other._readings = unlearned, {}
        other._stream = other._read_without(other._hidden)
        for name in ("provenance", "_events"):
            vars(other).pop(name, None)
        return other

    def _read_without(self, hidden: Bool[Tensor, " d_vocab"] | None) -> StreamReadings:
        return StreamReadings(self.lm, self.run_with, self._before, hidden)

    @property
    def _hidden(self) -> Bool[Tensor, " d_vocab"] | None:
        return None if self.show_unlearned else self.lm.unlisted

    def __len__(self) -> int:
        """The number of tokens of the prompt."""
        return self.tokens.shape[0]

    def __repr__(self) -> str:
        """The model, the prompt's length, the prediction, and what a trace offers."""
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
        if self._before == "resid_mid":
            points.insert(1, "resid_mid")
        names = {"resid_pre": "before", "resid_mid": "after_attention", "resid_post": "after_ffn"}
        for point in points:
            columns[f"{names[point]}_token"] = [layer[-1][0] for layer in self.readings(point).tokens]
        columns["rank"] = self.prediction_ranks()[:, -1].tolist()
        text = self.lm.token_strings([int(self.prediction[-1])])[0]
        return Table(f"Top tokens after the last token, and the rank of {text!r}", columns, self.provenance)

    @property
    def token_strings(self) -> list[str]:
        """The prompt's tokens as text."""
        return self.lm.token_strings(self.tokens)

    @cached_property
    def provenance(self) -> Provenance:
        """The model, the edits, and whether unlearned tokens are listed."""
        notes: dict[str, Any] = {"edits": [e.to_dict() for e in self.edits]} if self.edits else {}
        return self.lm.provenance(notes={**notes, "show_unlearned": self.show_unlearned})

    @property
    def scale(self) -> Float[Tensor, "pos 1"]:
        """The scale of the final norm at every position of the run."""
        return self._stream.scale

    @property
    def prediction(self) -> Int[Tensor, " pos"]:
        """The model's most likely next token after every position."""
        return self._stream.prediction

    def by_layers(self, vectors: int = 384) -> Iterator[tuple[range, str, Reading]]:
        """The readings some layers at a time, which `readings` and `events` reuse; see `StreamReadings.by_layers`."""
        return self._stream.by_layers(vectors)

    def entropy_and_kl(self, point: StreamPoint = "resid_post") -> EntropyAndKL:
        """The entropy, and the KL divergence from the model's final prediction, of every reading at a point, in nats.

        Raises:
            PointMissing: the model has no such point.

        Memory: 3 * pos * d_vocab numbers.
        """
        entropy, divergence = self._stream.entropy_and_kl(point)
        provenance = self.lm.provenance(basis="final", notes={**self.provenance.notes, "point": point})
        return EntropyAndKL(point, entropy, divergence, tuple(self.token_strings), provenance)

    def readings(self, point: StreamPoint = "resid_post", top: int = TOP, basis: Basis = "final") -> Readings:
        """Top tokens of the stream at a point, for every layer and position.

        Raises:
            PointMissing: the model has no such point.
        """
        as_str("point", point)
        as_str("basis", basis)
        key = (point, positive_int("top", top), basis)
        if key not in self._readings:
            self._readings[key] = self._read(*key)
        return self._readings[key]

    def _read(self, point: StreamPoint, top: int, basis: Basis) -> Readings:
        reading = self._stream.read(point, top, basis)
        flat = self.lm.token_strings(reading.ids)
        layers, positions, k = reading.ids.shape
        texts = [
            [flat[(n * positions + p) * k : (n * positions + p + 1) * k] for p in range(positions)]
            for n in range(layers)
        ]
        notes = {**self.provenance.notes, "point": point}
        provenance = self.lm.provenance(basis=basis, notes=notes)
        return Readings(point, basis, not self.show_unlearned, reading, texts, tuple(self.token_strings), provenance)

    def run_with(self, points: Sequence[str]) -> Run:
        """A run of the same prompt and edits that captured these points: the trace's own, or a cached one."""
        if all(as_str("point", point) in self.run for point in points):
            return self.run
        key = ",".join(sorted(points))
        if key not in self._runs:
            self._runs[key] = run(self.lm, self.tokens[None], tuple(points), self.edits)
        return self._runs[key]

    def ranks_of(
        self, token: str | int, point: StreamPoint = "resid_post", position: int | None = None
    ) -> Int[Tensor, "layer pos"]:
        """The rank of a token at every layer, and at every position or at one; 1 is the top."""
        return self.ranks_and_probabilities(token, point, position=position)[0]

    def ranks_and_probabilities(
        self, token: str | int, point: StreamPoint = "resid_post", basis: Basis = "final", position: int | None = None
    ) -> tuple[Int[Tensor, "layer pos"], Float[Tensor, "layer pos"]]:
        """The rank (from 1, the top) and the probability of a token at every layer, at every position or at one.

        Raises:
            PointMissing: the model has no such point.
        """
        column = None if position is None else position_of(self.run, position)
        return self._stream.ranks_and_probabilities(self.lm.single_token(token), point, basis, column)

    def ranks_among(
        self, tokens: Sequence[Sequence[int]], points: Sequence[str], layer: int, position: int, basis: Basis = "final"
    ) -> Int[Tensor, "point token"]:
        """The ranks of chosen tokens, as many at each point, at points of one layer and position; 1 is the top."""
        layer, column = self.lm.layer(layer), position_of(self.run, position)
        return self._stream.ranks_among(tokens, points, layer, column, basis)

    def prediction_ranks(self, point: StreamPoint = "resid_post") -> Int[Tensor, "layer pos"]:
        """The rank of every position's own final prediction at a point of every layer; 1 is the top.

        Raises:
            PointMissing: the model has no such point.
        """
        return self._stream.read(point).tracked_ranks[..., 0]

    def logits(self, position: int = -1) -> Float[Tensor, " d_vocab"]:
        """The model's logits after a position."""
        return self._stream.logits[position_of(self.run, position)]

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
        return question(self.lm, self.logits(position), token, against, alone=alone, hidden=self._hidden)

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
            order: what the list is ranked by: "effect"; "deviation", the effect beyond that of the mean coefficient
                (mean ablation); "size" or "coefficient".
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
        """By layer, the memories with the largest effects on a question, then as many that are always on.

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
        return ScoredMemories(
            self.lm,
            self.run,
            question or self.question(position=position),
            position_of(self.run, position),
            layers,
            usual_coefficients(self.lm, index),
            top_tokens=top_tokens,
            show_unlearned=self.show_unlearned,
        )

    def _with_memories(self) -> list[int]:
        return [n for n in range(self.lm.n_layers) if self.run.has("coefficients", n)]

    def described_memories(
        self, token: str | int | None = None, position: int = -1, top: int = 3, *, index: Index | None = None
    ) -> Records[DescribedMemory]:
        """Memories (FFN neurons) with a description that promote a token most, the largest effect first.

        The effect is what a memory adds to the token's logit over what it adds to the average token's. Descriptions are
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
        descriptions = memory_descriptions(self.lm, None if index is None else index.path)
        top = positive_int("top", top)
        found = described_memories(self.lm, self.run, target, column, self._with_memories(), descriptions, top)
        title = f"Described memories that promote {self.lm.token_strings([target])[0]!r}"
        return described_records(title, found, self.provenance)

    @cached_property
    def _events(self) -> list[Event]:
        return prompt_events(self._stream)

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
        found = prompt_rank_changes(self._stream, target, column)
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

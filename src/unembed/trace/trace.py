"""The `Trace` of one prompt: lens readings, memories, events, what heads add, and logit attributions."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property

from unembed.attention.behaviour.head_outputs import HeadUpdate, head_updates
from unembed.attention.behaviour.score_terms import score_points
from unembed.attention.behaviour.value_weighted_attention import POINTS as MOVED
from unembed.causality.effects import total_effects
from unembed.lazy import offers
from unembed.logit_attribution import Attribution, attribution, points_needed
from unembed.memories.events import Event
from unembed.names import By, StreamPoint
from unembed.results import Displayed, Records, Table, format_percent
from unembed.stream.capture_points import has_point
from unembed.stream.run import Run, position_of
from unembed.trace.pattern_summaries import PatternSummary, pattern_summaries
from unembed.trace.prompt_events import prompt_events, prompt_rank_changes
from unembed.trace.prompt_memories import PromptMemories
from unembed.trace.tables import event_records, head_update_records


@offers(
    "token_strings prediction logits stream readings ranks_of entropy_and_kl rank_changes events sub_updates "
    "head_updates memory_effects attribution to_table save widget"
)
class Trace(PromptMemories, Displayed):
    """A prompt run through the model, perhaps with edits. Results are computed once, on first use."""

    def showing(self, unlearned: bool) -> Trace:
        """Return this trace with, or without, tokens that the model never learned. The model is not run again."""
        if unlearned == self.show_unlearned:
            return self
        other = copy(self)
        other.show_unlearned, other._read, other._readings, other._scored, other._ends = unlearned, {}, {}, None, None
        other._events = {}
        vars(other).pop("provenance", None)
        return other

    def __repr__(self) -> str:
        answer, p = int(self.prediction[-1]), float(self.logits(-1).float().softmax(-1).max())
        edits = f", {len(self.edits)} edits" if self.edits else ""
        return (
            f"Trace of {len(self)} tokens on {self.lm.name} ({self.lm.n_layers} layers{edits}): predicts "
            f"{self.lm.token_strings([answer])[0]!r} ({format_percent(p, 0)})\n"
            "  .readings() .sub_updates(layer) .events() .attribution(token) .to_table()"
        )

    def to_table(self) -> Table:
        """Return a table of the last position, by layer: top token at each capture point, rank of the prediction."""
        columns: dict[str, list[object]] = {"layer": list(range(self.lm.n_layers))}
        points: list[StreamPoint] = ["resid_pre", "resid_post"]
        if self.before_ffn == "resid_mid":
            points.insert(1, "resid_mid")
        names = {"resid_pre": "before", "resid_mid": "after_attention", "resid_post": "after_ffn"}
        for point in points:
            columns[f"{names[point]}_token"] = [layer[0][0] for layer in self.readings(point, position=-1).tokens]
        columns["rank"] = self.prediction_ranks(position=-1)[:, 0].tolist()
        text = self.lm.token_strings([int(self.prediction[-1])])[0]
        about = replace(self.provenance, basis=self.basis)
        return Table(f"Top tokens after the last token, and the rank of {text!r}", columns, about)

    def events(self, position: int | None = None) -> Records[Event]:
        """Return saturation and elimination events, at one position or at all.

        Saturation: the first update after which the final prediction stays first. Elimination: the FFN update that
        pushes the token that was first before it furthest down.

        Raises:
            Unsupported: the model has no FFN.
            OutOfRange: no such position.
        """
        if all(block.feed_forward is None for block in self.lm.structure.blocks):
            self.lm.feed_forward(0)  # raises an error with the reason, such as that no layer has an FFN
        column = None if position is None else position_of(self.run, position)
        if column not in self._events:
            self._events[column] = prompt_events(self, column)
        found = self._events[column]
        return event_records("Saturation and elimination events", self.lm, found, self.provenance)

    def rank_changes(self, token: str | int | None = None, position: int | None = None) -> Records[Event]:
        """Return updates across which a token's rank at least halves or doubles, separately for attention and the FFN.

        Args:
            token: the token to follow; each position's own prediction when None.
            position: only this position; all when None.

        Returns:
            Rank changes by position and layer; none in a model whose blocks add attention and FFN in parallel.

        Raises:
            OutOfRange: no such position.
        """
        column = None if position is None else position_of(self.run, position)
        target = None if token is None else self.lm.single_token(token)
        found = prompt_rank_changes(self, target, column)
        return event_records("Rank changes", self.lm, found, self.provenance)

    @cached_property
    def pattern_summaries(self) -> dict[int, PatternSummary]:
        """Summaries of all heads' attention patterns (see `PatternSummary`), one for each layer that has attention."""
        return pattern_summaries(self.lm, self.tokens[None], self.edits)

    def layer_heads(self, layer: int) -> Run:
        """Return a run that captured a layer's patterns and values at every position, and what `score_terms` needs.

        Raises:
            OutOfRange: no such layer.
        """
        layer = self.lm.layer(layer)
        moved = [point for point in MOVED if has_point(self.lm, point, layer)]
        return self.everywhere(tuple(dict.fromkeys([*score_points(self.lm), *moved])), [layer])

    def head_updates(
        self,
        layer: int,
        position: int = -1,
        token: str | int | None = None,
        against: str | int | None = None,
        *,
        top_tokens: int = 10,
        heads: Sequence[int] | None = None,
    ) -> Records[HeadUpdate]:
        """Return what each head of a layer adds to the stream at a position, the longest vector first.

        Args:
            position: the position; the last by default.
            heads: only these; all by default.
            token: if given, each head is scored by what it adds to this token's logit.
            against: score the difference between the token's logit and this token's logit.
            top_tokens: number of promoted tokens listed for each head.

        Raises:
            InvalidInput: both tokens are the same.
            OutOfRange: no such layer or position.
        """
        run, column = self.at(position, ("z",)), position_of(self.run, position)
        scale = self.scale[column]
        hidden = not self.show_unlearned
        found = head_updates(
            self.lm, run, layer, token, scale, against, k=top_tokens, hide_unlearned=hidden, heads=heads
        )
        return head_update_records(f"What the heads of layer {layer} add at position {column}", found, self.provenance)

    def attribution(
        self, token: str | int, position: int = -1, against: str | int | None = None, by: By = "component"
    ) -> Attribution:
        """Split the logit of a token, or the difference of two, into what each component adds to it."""
        here = self.at(position, points_needed(self.lm, by, self.edits))
        return replace(
            attribution(self.lm, here, token, against=against, by=by),
            position=position,
            provenance=self.lm.provenance(basis="frozen", notes=self.provenance.notes),
            measure_effects=lambda one, rows: total_effects(self.lm, self.run, one, rows, self.edits),
            sources=tuple(self.token_strings) if by == "source" else (),
        )

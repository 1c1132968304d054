"""Parts of the model removed one at a time on a prompt: what is predicted after a position without each.

Candidates come from direct attribution, which sees every part at no cost but only what it adds by itself; what is
reported of them is measured, by reruns in which the part writes nothing at the position. Silent at every position, a
part of a low layer would take the text away that the others read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.causality.last_position import LastPosition
from unembed.causality.replaced_pass import Replacement
from unembed.causality.rerun import Rerun

if TYPE_CHECKING:
    from unembed.stream.interventions import Edit
    from unembed.trace.question import Question
    from unembed.trace.trace import Trace

PartKind = Literal["head", "memory", "attention", "mixer", "ffn"]
_POINTS = {"head": "z", "memory": "coefficients", "attention": "attn_out", "mixer": "attn_out", "ffn": "mlp_out"}
_LEAST_TOKENS, _MOST_PASSES, _LEAST_PARTS = 256, 1.5, 4
"""How much is rerun: as many tokens (through all layers) as this, or as this many passes of the prompt, and at least
this number of parts."""
_READING_WEIGHTS = 32
"""The weights of a layer are read in the time in which this many tokens pass through it, roughly."""


@dataclass(frozen=True)
class Part:
    """A head, a memory, or the attention, other mixer or FFN of a layer, by what it adds to a question."""

    kind: PartKind
    layer: int
    index: int | None
    contribution: float

    @property
    def key(self) -> tuple[str, int, int | None]:
        """Return what identifies the part."""
        return self.kind, self.layer, self.index


@dataclass(frozen=True)
class Removal:
    """The prediction after a position without one part."""

    part: Part
    probability: float
    """Of the question's token."""
    effect: float
    """By how much the token's log-odds fall, in nats; for a chosen pair of tokens, the difference of their logits."""
    first: int
    """The most likely token."""
    gained: int
    """The token whose probability rises most."""
    gained_from: float
    gained_to: float


def affordable(parts: Sequence[Part], n_layers: int, n_tokens: int) -> list[Part]:
    """The first parts whose removal costs little beside the prompt's own pass: a rerun starts at the part's layer."""
    left = max(_LEAST_TOKENS, _MOST_PASSES * n_tokens)
    chosen: list[Part] = []
    for part in parts:
        left -= n_tokens * (n_layers - part.layer) / n_layers
        if left < 0 and len(chosen) >= _LEAST_PARTS:
            break
        chosen.append(part)
    return chosen


def split_by_cost(layers: Sequence[int], n_layers: int, n_tokens: int) -> list[slice]:
    """Split rows, sorted by the layer at which each starts, into batches that cost least together.

    A batch starts at its lowest layer; a layer costs as much as it has tokens, but at least the reading of its weights.
    """
    best: list[tuple[float, int]] = [(0.0, 0)]  # the cost of the first rows, and where their last batch starts
    for stop in range(1, len(layers) + 1):
        costs = (
            (best[start][0] + (n_layers - layers[start]) * max(_READING_WEIGHTS, (stop - start) * n_tokens), start)
            for start in range(stop)
        )
        best.append(min(costs))
    batches: list[slice] = []
    stop = len(layers)
    while stop:
        batches.insert(0, slice(best[stop][1], stop))
        stop = best[stop][1]
    return batches


@dataclass(frozen=True, eq=False)
class ReadBy:
    """A head, and the sources that it may read nothing from."""

    layer: int
    head: int
    weights: Float[Tensor, " src"]
    """Its attention weights at the position."""
    values: Float[Tensor, "src d_head"]
    """What it would read from each source alone."""
    sources: Sequence[int]

    def rows(self) -> list[Float[Tensor, " d_head"]]:
        """What it mixes by its own weights, then by those without each source."""
        weights = [self.weights, *(self.weights.index_fill(0, torch.tensor(one), 0.0) for one in self.sources)]
        return [one.to(self.values) @ self.values for one in weights]


class Removals:
    """Reruns of a trace's prompt up to a position, each without one part.

    Where the model allows it, only that position is run again, on the keys and values of the trace's own pass: nothing
    before it changes. Elsewhere the prompt up to the position is.
    """

    def __init__(self, trace: Trace, question: Question, position: int, *, chosen_pair: bool = False) -> None:
        """Prepare reruns that start at the layer of the part removed.

        Args:
            question: the token, and what it is compared with.
            position: the position whose prediction is meant, from 0.
            chosen_pair: measure the difference of the two tokens' logits, instead of the token's log-odds.

        Raises:
            UnembedError: the model's prompt cannot be rerun.
        """
        self._token, self._against = question.token, question.against if chosen_pair else None
        self._where = torch.tensor([position])
        edits = _up_to(trace.edits, position, len(trace))
        self._rerun = Rerun(
            trace.lm, trace.tokens[None, : position + 1], (), edits, None, trace.run, trace.block_outputs
        )
        self._last = None if trace.keys is None else LastPosition(self._rerun, trace.keys)

    @torch.no_grad()
    def without(self, parts: Sequence[Part]) -> list[Removal]:
        """The prediction without each part, in their order, of the first parts whose removal costs little.

        Raises:
            UnembedError: a part cannot be removed in this model.
        """
        found = self._of_last([self._zero(part) for part in parts])
        if found is None:
            parts = affordable(parts, self._rerun.lm.n_layers, self._rerun.n_pos)
            found = self._of_all([self._zero(part) for part in parts])
        return self._removals(parts, *found)

    def _removals(
        self, parts: Sequence[Part], own: Float[Tensor, " d_vocab"], without: Float[Tensor, "row d_vocab"]
    ) -> list[Removal]:
        if not parts:
            return []
        effects = (self._measures(own[None]) - self._measures(without)).tolist()
        before, after = own.double().softmax(-1), without.double().softmax(-1)
        gains = after - before
        gains[:, self._token] = -torch.inf
        gained = gains.argmax(-1)
        columns = (
            after[:, self._token].tolist(),
            effects,
            without.argmax(-1).tolist(),
            gained.tolist(),
            before[gained].tolist(),
            after.gather(1, gained[:, None])[:, 0].tolist(),
        )
        return [Removal(part, *row) for part, *row in zip(parts, *columns, strict=True)]

    def _measures(self, logits: Float[Tensor, "row d_vocab"]) -> Float[Tensor, " row"]:
        logits = logits.double()
        own = logits[:, self._token]
        if self._against is not None:
            return own - logits[:, self._against]
        others = logits.clone()
        others[:, self._token] = -torch.inf
        return own - others.logsumexp(-1)

    @torch.no_grad()
    def source_effects(self, heads: Sequence[ReadBy]) -> list[list[float] | None]:
        """Return how much the measure falls if a head reads nothing from a source, for each source of each head.

        None for a head that does not write its weights times the values of the sources.
        """
        rows = [(i, row) for i, head in enumerate(heads) for row in head.rows()]
        changes = [Replacement("z", heads[i].layer, self._where, heads[i].head, row[None]) for i, row in rows]
        unchanged, logits = self._of_last(changes) or self._of_all(changes)
        measured, reference = self._measures(logits).tolist(), float(self._measures(unchanged[None]))
        found = [[one for (j, _), one in zip(rows, measured, strict=True) if j == i] for i in range(len(heads))]
        return [None if abs(own - reference) > 1e-2 else [own - other for other in others] for own, *others in found]

    def _of_last(self, changes: Sequence[Replacement]) -> _Logits | None:
        """The logits without a change and with each by itself, from reruns of the position; None if that is not exact.

        After it once was not, it is not tried again.
        """
        found = None if self._last is None else self._last.logits([[change] for change in changes])
        if found is None and changes:
            self._last = None
        return found

    def _of_all(self, changes: Sequence[Replacement]) -> _Logits:
        """The same from reruns of the prompt up to the position; those of near layers share a batch."""
        order = sorted(range(len(changes)), key=lambda i: changes[i].layer)
        layers = [changes[i].layer for i in order]
        batches = split_by_cost(layers, self._rerun.lm.n_layers, self._rerun.n_pos)
        own = self._rerun.reference
        if not changes:
            return own, own[None][:0]
        found = torch.cat([self._rerun.logits([[changes[i]] for i in order[part]]) for part in batches])
        return own, found[torch.tensor(order).argsort()]

    def _zero(self, part: Part) -> Replacement:
        index = torch.tensor([part.index]) if part.kind == "memory" else part.index
        return Replacement(_POINTS[part.kind], part.layer, self._where, index, torch.tensor(0.0))


_Logits = tuple[Float[Tensor, " d_vocab"], Float[Tensor, "row d_vocab"]]


def _up_to(edits: Sequence[Edit], position: int, n_pos: int) -> list[Edit]:
    """The same edits in a run that ends at a position, whose last one would be another."""

    def moved(edit: Edit) -> Edit:
        where = (-1,) if edit.positions == "last" else edit.positions
        if isinstance(where, str):
            return edit
        from_start = (p + n_pos if p < 0 else p for p in where)
        return replace(edit, positions=tuple(p for p in from_start if 0 <= p <= position))

    found = (edit if position == n_pos - 1 else moved(edit) for edit in edits)
    return [edit for edit in found if edit.positions]

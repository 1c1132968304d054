"""Parts of the model removed one at a time on a prompt: what is predicted after a position without each.

Candidates come from direct attribution, which sees every part at no cost but only what it adds by itself; what is
reported of them is measured, by reruns in which the part writes nothing at the position. Silent at every position, a
part of a low layer would take the text away that the others read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.causality.replaced_pass import Replacement
from unembed.causality.rerun import Rerun

if TYPE_CHECKING:
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
    sources: Sequence[int]

    def rows(self) -> list[Float[Tensor, " src"]]:
        """Its own weights, then those without each source."""
        return [self.weights, *(self.weights.index_fill(0, torch.tensor(source), 0.0) for source in self.sources)]


class Removals:
    """Reruns of a trace's prompt up to a position, each without one part."""

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
        self._rerun = Rerun(
            trace.lm, trace.tokens[None, : position + 1], (), trace.edits, None, trace.run, trace.block_outputs
        )

    @torch.no_grad()
    def without(self, parts: Sequence[Part]) -> list[Removal]:
        """The prediction without each part, in the order of the parts; reruns of near layers share a batch.

        Raises:
            UnembedError: a part cannot be removed in this model.
        """
        order = sorted(range(len(parts)), key=lambda i: parts[i].layer)
        logits = self._logits([self._zero(parts[i]) for i in order])
        rows = dict(zip(order, logits, strict=True))
        return [self._removal(part, rows[i]) for i, part in enumerate(parts)]

    def _removal(self, part: Part, logits: Float[Tensor, " d_vocab"]) -> Removal:
        own = self._rerun.reference
        before, after = own.double().softmax(-1), logits.double().softmax(-1)
        effect = self._measure(own) - self._measure(logits)
        gain = after - before
        gain[self._token] = -torch.inf
        gained = int(gain.argmax())
        first, p = int(logits.argmax()), float(after[self._token])
        return Removal(part, p, effect, first, gained, float(before[gained]), float(after[gained]))

    def _measure(self, logits: Float[Tensor, " d_vocab"]) -> float:
        logits = logits.double()
        if self._against is not None:
            return float(logits[self._token] - logits[self._against])
        others = logits.clone()
        others[self._token] = -torch.inf
        return float(logits[self._token] - others.logsumexp(-1))

    @torch.no_grad()
    def source_effects(self, heads: Sequence[ReadBy]) -> list[list[float] | None]:
        """Return how much the measure falls if a head reads nothing from a source, for each source of each head.

        None for a head that does not write its weights times the values of the sources.
        """
        order = sorted(range(len(heads)), key=lambda i: heads[i].layer)
        rows = [(i, row) for i in order for row in heads[i].rows()]
        logits = self._logits(
            [Replacement("pattern", heads[i].layer, self._where, heads[i].head, row[None]) for i, row in rows]
        )
        found = [[self._measure(one) for (j, _), one in zip(rows, logits, strict=True) if j == i] for i in order]
        by_head = dict(zip(order, found, strict=True))
        reference = self._measure(self._rerun.reference)
        return [
            None if abs(own - reference) > 1e-2 else [own - other for other in others]
            for own, *others in (by_head[i] for i in range(len(heads)))
        ]

    def _logits(self, changes: Sequence[Replacement]) -> Float[Tensor, "row d_vocab"]:
        """The logits with each change by itself; changes come in the order of their layers."""
        layers = [change.layer for change in changes]
        batches = split_by_cost(layers, self._rerun.lm.n_layers, self._rerun.n_pos)
        found = [self._rerun.logits([[change] for change in changes[part]]) for part in batches]
        return torch.cat(found) if found else self._rerun.reference[None][:0]

    def _zero(self, part: Part) -> Replacement:
        index = torch.tensor([part.index]) if part.kind == "memory" else part.index
        return Replacement(_POINTS[part.kind], part.layer, self._where, index, torch.tensor(0.0))

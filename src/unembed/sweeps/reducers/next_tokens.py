"""Which tokens follow where a memory is active, compared with how often they follow anywhere."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.corpus.segments import Batch
from unembed.errors import InvalidInput, OutOfRange
from unembed.models.decoder import Decoder
from unembed.sweeps.reducers.reducer import Need, Summed


@dataclass(frozen=True, eq=False)
class NextTokens:
    """Counts of next tokens: at positions where each memory was active, and at all positions."""

    memories: tuple[tuple[int, int], ...]
    counts: Int[Tensor, "memory d_vocab"]
    weights: Float[Tensor, "memory d_vocab"]
    """Sums of the coefficients at the same positions."""
    all_counts: Int[Tensor, " d_vocab"]

    def lift(self, layer: int, index: int) -> Float[Tensor, " d_vocab"]:
        """Each token's frequency after the active memory over its frequency anywhere; 0 where it never follows."""
        row = self._row(layer, index)
        share = self.counts[row].double() / max(int(self.counts[row].sum()), 1)
        base = self.all_counts.double() / max(int(self.all_counts.sum()), 1)
        return torch.where(base > 0, share / base.clamp_min(1e-300), 0.0)

    def top(self, layer: int, index: int, top: int = 10) -> list[tuple[int, int]]:
        """The `top` tokens that follow most often, with their counts; equal counts by smaller id."""
        counts = self.counts[self._row(layer, index)]
        order = counts.argsort(descending=True, stable=True)[:top]
        return [(int(token), int(counts[token])) for token in order if counts[token] > 0]

    def _row(self, layer: int, index: int) -> int:
        if (layer, index) not in self.memories:
            raise OutOfRange(
                f"memory {layer}, {index}",
                why="its next tokens were not counted",
                instead="Name it in NextTokenCounts(memories)",
            )
        return self.memories.index((layer, index))


class NextTokenCounts(Summed):
    """Counts of the tokens that follow an active memory. Positions without a next token are not counted.

    Args:
        memories: (layer, index) of each memory; a table of all memories would not fit.
        threshold: a memory is active where its coefficient is larger; in gated layers where its magnitude is.

    Memory: 16 bytes a memory and token of the vocabulary.

    Raises:
        InvalidInput: no memory is named.
    """

    def __init__(self, memories: Sequence[tuple[int, int]], threshold: float = 0.0) -> None:
        if not memories:
            raise InvalidInput("memories", why="the list is empty")
        self.memories, self.threshold = tuple(dict.fromkeys((int(a), int(b)) for a, b in memories)), threshold

    def start(self, lm: Decoder) -> None:
        """No positions.

        Raises:
            OutOfRange: there is no such memory.
        """
        checked = [lm.memory(*memory) for memory in self.memories]
        self._memories = tuple(dict.fromkeys(checked))
        self._rows: dict[int, list[int]] = {}
        for row, (layer, _) in enumerate(self._memories):
            self._rows.setdefault(layer, []).append(row)
        self._gated = {layer: lm.feed_forward(layer).is_gated for layer in self._rows}
        self._sums = {
            "counts": torch.zeros(len(self._memories), lm.d_vocab, dtype=torch.long),
            "weights": torch.zeros(len(self._memories), lm.d_vocab, dtype=torch.float64),
            "all": torch.zeros(lm.d_vocab, dtype=torch.long),
        }

    @property
    def needs(self) -> Collection[Need]:
        """The coefficients of the layers of the memories."""
        return [("coefficients", layer) for layer in sorted(self._rows)]

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:
        """Count a layer's active memories by next token."""
        counted = batch.counted & (batch.next_tokens >= 0)
        following = batch.next_tokens[counted]
        rows = self._rows[layer]
        x = tensor[..., [self._memories[row][1] for row in rows]].cpu()[counted].double()
        active = (x.abs() if self._gated[layer] else x) > self.threshold
        for column, row in enumerate(rows):
            at = active[:, column]
            self._sums["counts"][row] += torch.bincount(following[at], minlength=len(self._sums["all"]))
            self._sums["weights"][row].index_add_(0, following[at], x[at, column])

    def update(self, batch: Batch) -> None:
        """Count all next tokens."""
        following = batch.next_tokens[batch.counted & (batch.next_tokens >= 0)]
        self._sums["all"] += torch.bincount(following, minlength=len(self._sums["all"]))

    def result(self) -> NextTokens:
        """All counts."""
        return NextTokens(self._memories, *(self._sums[name].clone() for name in ("counts", "weights", "all")))

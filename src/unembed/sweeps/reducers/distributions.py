"""How values are distributed: counts between given edges for every unit, and quantiles of a whole layer.

Both are counts, so merging is exact and independent of order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.corpus.segments import Batch
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.sweeps.reducers.pointwise import Pointwise, counted_columns
from unembed.sweeps.reducers.reducer import Summed


@dataclass(frozen=True, eq=False)
class Counts:
    """By layer, (width, bins): the number of positions in [edge, next edge); the outermost bins are unbounded."""

    layers: tuple[int, ...]
    edges: Float[Tensor, " edge"]
    counts: tuple[Int[Tensor, "_ bin"], ...]
    """One bin more than edges: below the first, between each two, and from the last on."""


class Histogram(Summed, Pointwise):
    """Counts between edges for every unit.

    Args:
        edges: increasing numbers, compared in float32.
        layers: which layers; all when None.

    Memory: 8 bytes a unit and bin.

    Raises:
        InvalidInput: the edges do not increase.
    """

    def __init__(
        self, edges: Sequence[float], point: str = "coefficients", layers: Sequence[int] | None = None
    ) -> None:
        super().__init__(point, layers)
        self.edges = tuple(float(e) for e in edges)
        if not self.edges or any(not a < b for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise InvalidInput(f"edges={list(self.edges)}", why="they must increase, and there must be at least one")

    def start(self, lm: Decoder) -> None:
        """No positions."""
        super().start(lm)
        self._edges = torch.tensor(self.edges)
        self._sums = {}

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:
        """Count a layer's values."""
        x = counted_columns(tensor, batch).float().contiguous()
        width, bins = x.shape[1], len(self.edges) + 1
        which = torch.bucketize(x, self._edges.to(x.device), right=True)
        which += torch.arange(width, device=x.device) * bins
        counts = torch.bincount(which.flatten(), minlength=width * bins).view(width, bins).cpu()
        self._sums[str(layer)] = counts + self._sums.get(str(layer), 0)

    def result(self) -> Counts:
        """All counts."""
        found = tuple(layer for layer in self._layers if str(layer) in self._sums)
        return Counts(found, self._edges.clone(), tuple(self._sums[str(layer)].clone() for layer in found))


@dataclass(frozen=True, eq=False)
class Sketch:
    """The distribution of the values of each layer, in bins of relative width 2^-7."""

    layers: tuple[int, ...]
    counts: tuple[Int[Tensor, " bin"], ...]
    """One bin for each of the 65,536 upper halves of a float32, lowest values first."""

    def quantile(self, layer: int, q: float | Sequence[float]) -> Float[Tensor, " q"]:
        """Quantiles of a layer's values, to a relative error of 2^-8.

        Raises:
            InvalidInput: a share outside 0 to 1.
        """
        shares = torch.tensor([q] if isinstance(q, float | int) else list(q), dtype=torch.float64)
        if bool((shares < 0).any() or (shares > 1).any()):
            raise InvalidInput(f"q={shares.tolist()}", why="it must be between 0 and 1")
        counts = self.counts[self.layers.index(layer)]
        below = counts.cumsum(0)
        rank = (shares * (below[-1] - 1)).round().long()
        return _middle(torch.searchsorted(below, rank, right=True))


class Quantiles(Summed, Pointwise):
    """A quantile sketch of each layer's values: counts by the upper half of their float32 bits.

    Memory: 512 KiB a layer.
    """

    def start(self, lm: Decoder) -> None:
        """No positions."""
        super().start(lm)
        self._sums = {str(layer): torch.zeros(1 << 16, dtype=torch.long) for layer in self._layers}

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:
        """Count a layer's values."""
        bits = counted_columns(tensor, batch).float().contiguous().view(torch.int32) >> 16
        # Upper halves, as whole numbers from -32768: a set sign bit means a negative value, larger bits further from 0.
        bins = torch.where(bits < 0, -1 - bits, bits + 32768)
        self._sums[str(layer)] += torch.bincount(bins.flatten(), minlength=1 << 16).cpu()

    def result(self) -> Sketch:
        """All counts."""
        return Sketch(self._layers, tuple(self._sums[str(layer)].clone() for layer in self._layers))


def _middle(bins: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The value in the middle of each bin."""
    negative = bins < 32768
    upper = torch.where(negative, -1 - bins, bins - 32768).to(torch.int32)
    low = (upper << 16).view(torch.float32)
    high = ((upper << 16) | 0xFFFF).view(torch.float32)
    return (low.double() + high.double()).div(2).float()

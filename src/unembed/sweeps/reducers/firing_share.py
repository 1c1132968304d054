"""Count how often each memory (FFN neuron) fires, and with which sign.

In a gated FFN a coefficient is hardly ever exactly 0, so counting coefficients other than 0 would count every token.
Instead, a memory fires where its coefficient is at least `FIRES` times its typical size, which is the root mean square
of its coefficients in a first batch. Without a gate most coefficients are exactly 0, and a memory fires where its
coefficient is above 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.corpus.segments import Batch
from unembed.models.decoder import Decoder
from unembed.models.structure.experts import RoutedCoefficients
from unembed.stream.massive_activations import massive_in_batch
from unembed.stream.run import run
from unembed.sweeps.reducers.pointwise import Pointwise, counted_columns, key_counts
from unembed.sweeps.reducers.reducer import Summed

FIRES = 0.5
"""A gated memory fires where its absolute coefficient is at least this share of its typical size."""


@dataclass(frozen=True, eq=False)
class FiringCounts:
    """The number of positions, out of `count`, at which each memory (FFN neuron) fires, by layer and sign."""

    layers: tuple[int, ...]
    count: int
    positive: tuple[Int[Tensor, " _"], ...]
    negative: tuple[Int[Tensor, " _"], ...]
    """Number of positions with a negative coefficient; 0 for memories without a gate."""


@torch.no_grad()
def usual_sizes(lm: Decoder, batch: Batch, layers: Sequence[int]) -> dict[int, Float[Tensor, " d_mlp"]]:
    """Return the root mean square of each memory's coefficients in a batch, for layers with a gated FFN.

    Positions with massive activations are left out: some coefficients are a thousand times as large there.
    """
    gated = [n for n in layers if lm.is_signed(n)]
    if not gated:
        return {}
    found = run(lm, batch.tokens, "coefficients", attention_mask=batch.mask, logits=False, layers=gated)
    usual = ~massive_in_batch(lm, batch)[batch.counted].to(lm.device)
    columns = {n: counted_columns(found.at("coefficients", n), batch)[usual] for n in gated}
    return {n: column.float().square().mean(dim=0).sqrt() for n, column in columns.items()}


class FiringShare(Summed, Pointwise):
    """Counts how often each memory (FFN neuron) fires with either sign.

    Args:
        usual: the typical coefficient of each memory in gated layers, from `usual_sizes`.
        layers: the layers to count in; by default, all.

    Memory: 16 bytes for each memory, and 4 for its typical coefficient.
    """

    def __init__(self, usual: Mapping[int, Float[Tensor, " _"]], layers: Sequence[int] | None = None) -> None:
        super().__init__("coefficients", layers)
        self.usual = {layer: sizes.cpu() for layer, sizes in usual.items()}

    def start(self, lm: Decoder) -> None:
        """Start with counts of 0."""
        super().start(lm)
        self._bounds = {n: FIRES * sizes.to(lm.device) for n, sizes in self.usual.items()}
        self._sums = {
            f"{n} {sign}": torch.zeros(lm.weights.n_memories[n], dtype=torch.long)
            for n in self._layers
            for sign in ("positive", "negative")
        }
        self._sums["count"] = torch.zeros((), dtype=torch.long)

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:
        """Count where the memories of a layer fire."""
        self._add(layer, counted_columns(tensor, batch), slice(None))

    def see_routed(self, layer: int, routed: RoutedCoefficients, batch: Batch) -> None:
        """Count where the memories of a layer with experts fire, one expert after another."""
        counted = batch.counted.flatten().to(routed.position.device)
        for first, position, m in routed.by_expert():
            rows = m[counted[position]] if batch.n_counted < len(counted) else m
            self._add(layer, rows, slice(first, first + m.shape[1]))

    def _add(self, layer: int, m: Float[Tensor, "n width"], keys: slice) -> None:
        if (bounds := self._bounds.get(layer)) is None:
            self._sums[f"{layer} positive"][keys] += key_counts(m > 0)
            return
        # A bound above 0 makes sure that a memory whose coefficient is always 0 does not count as firing.
        bound = bounds[keys].clamp_min(torch.finfo(torch.float32).tiny)
        self._sums[f"{layer} positive"][keys] += key_counts(m >= bound)
        self._sums[f"{layer} negative"][keys] += key_counts(m <= -bound)

    def update(self, batch: Batch) -> None:
        """Count the positions of a batch."""
        self._sums["count"] += batch.n_counted

    def result(self) -> FiringCounts:
        """Return the counts so far."""
        ends = ([self._sums[f"{n} {sign}"].clone() for n in self._layers] for sign in ("positive", "negative"))
        return FiringCounts(self._layers, int(self._sums["count"]), *map(tuple, ends))

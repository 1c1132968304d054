"""Compute the mean and variance of every channel of an activation, and how often each memory is active."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.corpus.segments import Batch
from unembed.models.decoder import Decoder
from unembed.models.structure.experts import RoutedCoefficients
from unembed.sweeps.reducers.pointwise import Pointwise, counted_columns, key_counts
from unembed.sweeps.reducers.reducer import Summed

_PARTS = ("mean", "m2", "least", "largest")


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean, variance, minimum and maximum of each channel, by layer, in float64 on the CPU."""

    layers: tuple[int, ...]
    count: int
    mean: tuple[Float[Tensor, " _"], ...]
    variance: tuple[Float[Tensor, " _"], ...]
    """The variance over the counted positions: the sum of squares divided by their number, not by one less."""
    least: tuple[Float[Tensor, " _"], ...]
    largest: tuple[Float[Tensor, " _"], ...]


class MeanVariance(Pointwise):
    """Computes the mean, variance, minimum and maximum of every channel (Chan, Golub and LeVeque 1979).

    Memory: 32 bytes for each channel.
    """

    def start(self, lm: Decoder) -> None:
        """Start with no data."""
        super().start(lm)
        self._sums: dict[int, dict[str, Tensor]] = {}
        self._n: dict[int, int] = dict.fromkeys(self._layers, 0)

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:
        """Add the activations of a layer."""
        x = counted_columns(tensor, batch).float()
        if len(x) == 0:
            return
        variance, mean = torch.var_mean(x, dim=0, correction=0)
        part = {"mean": mean, "m2": variance * len(x), "least": x.amin(dim=0), "largest": x.amax(dim=0)}
        self._add(layer, len(x), {name: t.double().cpu() for name, t in part.items()})

    def see_routed(self, layer: int, routed: RoutedCoefficients, batch: Batch) -> None:
        """Add the coefficients of a layer with experts; those of experts that were not chosen count as 0."""
        n, counted = batch.n_counted, batch.counted.flatten().to(routed.position.device)
        if n == 0:
            return
        part = {name: torch.zeros(routed.experts.n_memories, dtype=torch.float64) for name in _PARTS}
        for first, position, m in routed.by_expert():
            if n < len(counted):
                m = m[counted[position]]
            if len(m) == 0:
                continue
            keys, x = slice(first, first + m.shape[1]), m.float()
            variance, mean = torch.var_mean(x, dim=0, correction=0)
            least, largest = x.amin(dim=0), x.amax(dim=0)
            if len(x) < n:
                least, largest = least.clamp_max(0), largest.clamp_min(0)
            # The sum of squared deviations, including the zeros at positions where the expert was not chosen.
            m2 = len(x) * (variance + mean.square() * ((n - len(x)) / n))
            own = {"mean": mean * (len(x) / n), "m2": m2, "least": least, "largest": largest}
            for name, t in own.items():
                part[name][keys] = t.double().cpu()
        self._add(layer, n, part)

    def _add(self, layer: int, n: int, part: Mapping[str, Tensor]) -> None:
        if n == 0:
            return
        if layer not in self._sums:
            self._sums[layer], self._n[layer] = {name: t.clone() for name, t in part.items()}, n
            return
        sums, before = self._sums[layer], self._n[layer]
        after = before + n
        step = part["mean"] - sums["mean"]
        sums["mean"] += step * (n / after)
        sums["m2"] += part["m2"] + step**2 * (before * n / after)
        sums["least"] = torch.minimum(sums["least"], part["least"])
        sums["largest"] = torch.maximum(sums["largest"], part["largest"])
        self._n[layer] = after

    def merge(self, other: MeanVariance) -> None:
        """Add the data of another reducer."""
        for layer, part in other._sums.items():
            self._add(layer, other._n[layer], part)

    def result(self) -> Moments:
        """Return the moments of every channel, for the layers that have data."""
        found = [layer for layer in self._layers if layer in self._sums]

        def column(name: str) -> tuple[Tensor, ...]:
            return tuple(self._sums[layer][name].clone() for layer in found)

        variance = tuple(self._sums[layer]["m2"] / self._n[layer] for layer in found)
        count = max(self._n.values(), default=0)
        return Moments(tuple(found), count, column("mean"), variance, column("least"), column("largest"))

    def state(self) -> dict[str, Any]:
        """Return the counts and the float64 sums."""
        state: dict[str, Any] = {f"n.{layer}": n for layer, n in self._n.items()}
        for layer, part in self._sums.items():
            state |= {f"{name}.{layer}": t for name, t in part.items()}
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the counts and sums that `state` returned."""
        self._n = {layer: int(state[f"n.{layer}"]) for layer in self._layers}
        self._sums = {n: {name: state[f"{name}.{n}"].clone() for name in _PARTS} for n in self._layers if self._n[n]}


@dataclass(frozen=True, eq=False)
class ActiveShare:
    """The number of positions at which each memory (FFN neuron) was active, and shares computed from it."""

    layers: tuple[int, ...]
    count: int
    active: tuple[Int[Tensor, " _"], ...]
    """The number of positions at which each memory was active."""

    def share(self, layer: int) -> Float[Tensor, " width"]:
        """Return the share of positions at which each memory of a layer was active."""
        return self.active[self.layers.index(layer)].double() / max(self.count, 1)

    def by_layer(self) -> Float[Tensor, " layer"]:
        """Return, for each layer, the mean share of memories active at a position (Geva et al. 2021, figure 7)."""
        return torch.stack([self.share(layer).mean() for layer in self.layers])


class ActiveFraction(Summed, Pointwise):
    """Counts how often each memory (FFN neuron) is active.

    Args:
        threshold: a memory is active where its coefficient is larger than this; in gated layers, whose coefficients
            have either sign, where the absolute value is larger.
        layers: the layers to count in; by default, all.
        magnitude: whether to compare absolute values; by default, only in gated layers.

    Memory: 8 bytes for each memory.
    """

    def __init__(
        self, threshold: float = 0.0, layers: Sequence[int] | None = None, *, magnitude: bool | None = None
    ) -> None:
        super().__init__("coefficients", layers)
        self.threshold, self.magnitude = threshold, magnitude

    def start(self, lm: Decoder) -> None:
        """Start with counts of 0."""
        super().start(lm)
        gated = {layer: lm.feed_forward(layer).is_gated for layer in self._layers}
        self._magnitude = {layer: gated[layer] if self.magnitude is None else self.magnitude for layer in self._layers}
        self._sums = {str(n): torch.zeros(lm.weights.n_memories[n], dtype=torch.long) for n in self._layers}
        self._sums["count"] = torch.zeros((), dtype=torch.long)

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:
        """Count where the memories of a layer are active."""
        x = counted_columns(tensor, batch)
        self._sums[str(layer)] += key_counts((x.abs() if self._magnitude[layer] else x) > self.threshold)

    def see_routed(self, layer: int, routed: RoutedCoefficients, batch: Batch) -> None:
        """Count where the memories of a layer with experts are active, one expert after another."""
        counted = batch.counted.flatten().to(routed.position.device)
        for first, position, m in routed.by_expert():
            if batch.n_counted < len(counted):
                m = m[counted[position]]
            active = (m.abs() if self._magnitude[layer] else m) > self.threshold
            self._sums[str(layer)][first : first + m.shape[1]] += key_counts(active)
            # Where the expert was not chosen, the coefficient is 0, which is above a negative threshold, so these
            # positions count as active, too.
            if self.threshold < 0:
                self._sums[str(layer)][first : first + m.shape[1]] += batch.n_counted - len(m)

    def update(self, batch: Batch) -> None:
        """Count the positions of a batch."""
        self._sums["count"] += batch.n_counted

    def result(self) -> ActiveShare:
        """Return the counts so far."""
        return ActiveShare(
            self._layers, int(self._sums["count"]), tuple(self._sums[str(layer)].clone() for layer in self._layers)
        )

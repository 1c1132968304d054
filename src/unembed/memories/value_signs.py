"""Choose the sign of a gated memory's value vector, so that the vector is what the memory adds where it fires.

A gated memory writes act(gate . x) (up . x) v. Negating `up` and v changes nothing, so the sign of v alone is a
convention. Whatever depends on it (what a value vector promotes, which value vectors point the same way) needs a sign
that is not a convention. Here it is the sign of the sum of the memory's coefficients in a run: sign * v is, on balance,
what the memory adds where it fires.

For ungated layers, every sign is 1.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unembed.corpus import Batch
from unembed.models.decoder import Decoder
from unembed.sweeps.reducers.reducer import Need, Summed


@torch.no_grad()
def signs_by_weights(lm: Decoder, layer: int) -> Float[Tensor, " value"]:
    """Return, for each value vector, the sign (-1 or 1) of its dot product with the memory's gate vector.

    All signs are 1 in an ungated layer. Unlike the sign of a value vector, that of a gate vector is not a convention.
    Use this function if there is no run.
    """
    values, gate = lm.weights.W_out[layer], lm.weights.W_gate[layer]
    if not lm.is_signed(layer) or gate is None:
        return torch.ones(len(values), dtype=values.dtype, device=values.device)
    return _signs((gate.T.double() * values.double()).sum(dim=-1)).to(values)


def signs_by_run(lm: Decoder, layer: int, sums: Float[Tensor, " value"]) -> Float[Tensor, " value"]:
    """Return the sign (-1 or 1) of the sum of each memory's coefficients; all 1 in an ungated layer.

    Args:
        sums: the sum of each memory's coefficients over a run. Where it is 0, the sign is that of `signs_by_weights`.
    """
    by_weights = signs_by_weights(lm, layer)
    if not lm.is_signed(layer):
        return by_weights
    sums = sums.to(by_weights.device)
    return torch.where(sums == 0, by_weights, _signs(sums).to(by_weights))


def _signs(x: Tensor) -> Tensor:
    return torch.where(x < 0, -1.0, 1.0)


class CoefficientSums(Summed):
    """The sum of every memory's coefficients over all counted positions except the first of each row.

    In many models, the activations at the first position of a text are far larger than at all others.

    Memory: one number in float64 for each memory.
    """

    def start(self, lm: Decoder) -> None:
        """Set all sums to 0."""
        self._sums = {str(n): torch.zeros(lm.n_memories_of(n), dtype=torch.float64) for n in range(lm.n_layers)}

    @property
    def needs(self) -> Collection[Need]:
        """Return what to capture: the coefficients of every layer."""
        return [("coefficients", int(n)) for n in self._sums]

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:
        """Add the coefficients of a layer."""
        self.add(layer, tensor, batch.counted & (batch.columns > 0))

    def add(self, layer: int, values: Float[Tensor, "batch pos d_mlp"], chosen: Bool[Tensor, "batch pos"]) -> None:
        """Add some positions to the sums of a layer."""
        self._sums[str(layer)] += values[chosen.to(values.device)].double().sum(dim=0).cpu()

    def result(self) -> list[Float[Tensor, " _"]]:
        """Return the sums, layer by layer."""
        return [total.clone() for total in self._sums.values()]

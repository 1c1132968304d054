"""A base class for statistics of one activation, such as the coefficients, in some layers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.corpus.segments import Batch
from unembed.models.decoder import Decoder
from unembed.stream.capture_points import require_point
from unembed.sweeps.reducers.reducer import Need, Reducer


class Pointwise(Reducer):
    """A reducer that reads one capture point in some layers.

    Args:
        point: the capture point of an activation, such as "coefficients" or "resid_post".
        layers: the layers to read; by default, all that have the activation.
    """

    def __init__(self, point: str = "coefficients", layers: Sequence[int] | None = None) -> None:
        self.point, self.layers = point, None if layers is None else tuple(layers)

    def start(self, lm: Decoder) -> None:
        """Choose the layers, and check that they have the activation.

        Raises:
            PointMissing: a layer does not have the activation.
        """
        every = lm.memory_layers if self.point == "coefficients" and lm.memory_layers else range(lm.n_layers)
        self._layers = tuple(every) if self.layers is None else tuple(lm.layer(n) for n in self.layers)
        for layer in self._layers:
            require_point(lm, self.point, layer)

    @property
    def needs(self) -> Collection[Need]:
        """The capture point in every chosen layer."""
        return [(self.point, layer) for layer in self._layers]


def counted_columns(tensor: Tensor, batch: Batch) -> Float[Tensor, "n width"]:
    """Return the activations at counted positions, one row for each; heads are concatenated."""
    flat = tensor.reshape(-1, tensor[0, 0].numel())
    if batch.n_counted == len(flat):
        return flat
    return flat[batch.counted.flatten().to(tensor.device)]


def key_counts(which: Tensor) -> Int[Tensor, " width"]:
    """Return the number of True entries in each column, on the CPU."""
    return torch.count_nonzero(which, dim=0).cpu()

"""Numbers of the heads of some layers in one tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Shaped
from torch import Tensor


def by_layer(n_layers: int, found: Mapping[int, Shaped[Tensor, "head ..."]]) -> Shaped[Tensor, "layer most_heads ..."]:
    """All layers of a model: NaN in the layers that are not `found`, and where one has fewer heads than another.

    Args:
        found: by layer, at least one; as many axes in each.
    """
    first = next(iter(found.values()))
    shape = torch.tensor([tuple(one.shape) for one in found.values()]).amax(dim=0).tolist()
    nothing = complex(math.nan, math.nan) if first.is_complex() else math.nan
    every = first.new_full((n_layers, *shape), nothing)
    for layer, one in found.items():
        every[(layer, *(slice(size) for size in one.shape))] = one
    return every


def number_or_none(value: float | Tensor) -> float | None:
    """A number, None where it is NaN: where there is nothing that it would measure."""
    number = float(value)
    return None if math.isnan(number) else number

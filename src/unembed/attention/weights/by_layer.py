"""Put the values of heads from several layers into one tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor


def by_layer(n_layers: int, found: Mapping[int, Shaped[Tensor, "head ..."]]) -> Shaped[Tensor, "layer most_heads ..."]:
    """Return one tensor for all layers of a model.

    It is NaN in layers that are not in `found`, and where a layer has fewer heads than others.

    Args:
        found: a tensor for each layer, all with the same number of axes; at least one.
    """
    first = next(iter(found.values()))
    shape = torch.tensor([tuple(one.shape) for one in found.values()]).amax(dim=0).tolist()
    nothing = complex(math.nan, math.nan) if first.is_complex() else math.nan
    every = first.new_full((n_layers, *shape), nothing)
    for layer, one in found.items():
        every[(layer, *(slice(size) for size in one.shape))] = one
    return every


def places_of(by_head: Shaped[Tensor, "layer head"]) -> list[tuple[int, int]]:
    """Return (layer, head) of every head whose value is not NaN, in the order of the layers."""
    return [(layer, head) for layer, head in (~by_head.isnan()).nonzero().tolist()]


def head_columns(places: Sequence[tuple[int, int]], **by_head: Shaped[Tensor, "layer head"]) -> dict[str, list[Any]]:
    """Return the columns of a table with a row for each head: layer, head and its values; None where one is NaN."""
    columns: dict[str, list[Any]] = {"layer": [n for n, _ in places], "head": [h for _, h in places]}
    return columns | {name: [number_or_none(t[place]) for place in places] for name, t in by_head.items()}


def number_or_none(value: float | Tensor) -> float | None:
    """Return the value as a float, or None if it is NaN."""
    number = float(value)
    return None if math.isnan(number) else number

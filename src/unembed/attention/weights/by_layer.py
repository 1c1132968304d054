"""Put numbers of heads from several layers into one tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor


def by_layer(n_layers: int, found: Mapping[int, Shaped[Tensor, "head ..."]]) -> Shaped[Tensor, "layer most_heads ..."]:
    """Return one tensor for all layers of a model.

    It is NaN in layers that are not `found`, and where a layer has fewer heads than others.

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


def places_of(by_head: Shaped[Tensor, "layer head"]) -> list[tuple[int, int]]:
    """Return layer and head of every head whose number is known, in the order of the model."""
    return [(layer, head) for layer, head in (~by_head.isnan()).nonzero().tolist()]


def head_columns(places: Sequence[tuple[int, int]], **by_head: Shaped[Tensor, "layer head"]) -> dict[str, list[Any]]:
    """Return the columns of a table with a row for each head: layer, head, and its numbers; None where one is NaN."""
    columns: dict[str, list[Any]] = {"layer": [n for n, _ in places], "head": [h for _, h in places]}
    return columns | {name: [number_or_none(t[place]) for place in places] for name, t in by_head.items()}


def number_or_none(value: float | Tensor) -> float | None:
    """Return the number, or None where it is NaN because there is nothing to measure."""
    number = float(value)
    return None if math.isnan(number) else number

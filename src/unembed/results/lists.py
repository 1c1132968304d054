"""Convert tensors to JSON values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float
    from torch import Tensor


def numbers(tensor: Tensor | np.ndarray[Any, Any]) -> list[Any]:
    """Return the values of a tensor as nested lists. It replaces `tolist`, which has no type annotations in torch."""
    return tensor.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def numbers_or_none(tensor: Tensor) -> list[Any]:
    """Return the values of a tensor as nested lists, with None for NaN."""
    if tensor.dim() > 1:
        return [numbers_or_none(part) for part in tensor]
    return [None if value != value else value for value in numbers(tensor)]


def lower_triangle(matrix: Float[Tensor, "dst src"]) -> list[list[float]]:
    """Return the rows of a matrix up to and including the diagonal, as lists."""
    return [numbers(row[: i + 1]) for i, row in enumerate(matrix)]

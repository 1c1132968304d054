"""Tensors as JSON values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


def numbers(tensor: Tensor | np.ndarray[Any, Any]) -> list[Any]:
    """The values of a tensor as nested lists. The stubs of torch leave the result of `tolist` untyped."""
    return tensor.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

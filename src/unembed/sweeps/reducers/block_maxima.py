"""Compute maxima over blocks of activations, and find the large entries in a block whose maximum is large.

A row is a token position or a block of them, and a column (a key) is a channel of the activations. A cell is one block
of rows for one key.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

STEP = 8
"""Number of rows in a block; the fastest size measured for activations that do not fit in the cache."""


def maxima(x: Float[Tensor, "row key"], sign: int) -> Float[Tensor, "fewer key"]:
    """Return the maximum of `sign * x` over blocks of `STEP` rows; left-over rows form the last block.

    The rows of a block are not neighbours but a fixed distance apart, so that memory is read in `STEP` parallel
    sequences, which is about twice as fast.
    """
    n, keys = x.shape
    stride = n // STEP
    parts = []
    if stride:
        streams = x[: stride * STEP].view(STEP, stride, keys)
        parts.append(streams.amax(dim=0) if sign > 0 else streams.amin(dim=0))
    if stride * STEP < n:
        rest = x[stride * STEP :]
        parts.append((rest.amax(dim=0) if sign > 0 else rest.amin(dim=0))[None])
    found = torch.cat(parts) if len(parts) > 1 else parts[0]
    return found if sign > 0 else -found


def members(row: Int[Tensor, " cell"], n: int) -> tuple[Int[Tensor, "cell step"], Bool[Tensor, "cell step"]]:
    """Return the rows of each cell, and a mask that is False for rows that do not exist, because there are only `n`."""
    stride = n // STEP
    step = torch.arange(STEP, device=row.device)
    found = torch.where((row < stride)[:, None], row[:, None] + stride * step, stride * STEP + step)
    return found.clamp_max(n - 1), found < n


def rows_above(
    row: Int[Tensor, " cell"], key: Int[Tensor, " cell"], x: Tensor, threshold: Tensor, sign: int
) -> tuple[Int[Tensor, " found"], Int[Tensor, " found"]]:
    """Search some cells; return row and key of each entry of `x` that reaches the threshold of its key."""
    rows, inside = members(row, len(x))
    cell, entry = ((entries(x, rows, key) * sign >= threshold[key][:, None]) & inside).nonzero(as_tuple=True)
    return rows[cell, entry], key[cell]


def entries(
    x: Float[Tensor, "row key"], rows: Int[Tensor, "cell step"], key: Int[Tensor, " cell"]
) -> Float[Tensor, "cell step"]:
    """Return the entries of `x` in each cell, given the cell's rows and its key."""
    if not x.is_contiguous():
        return x[rows, key[:, None]]
    # In torch, indexing the flattened tensor with one list of offsets is more than twice as fast as with two indices.
    offsets = rows * x.shape[1] + key[:, None]
    return x.view(-1).index_select(0, offsets.flatten()).view(offsets.shape)

"""Maxima of maxima over columns of activations, and the way back from a maximum to what lies under it."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

STEP = 8
"""Columns under one maximum, and maxima under one of the next level: measured best where a read costs most."""


def maxima(x: Float[Tensor, "row key"], sign: int) -> Float[Tensor, "fewer key"]:
    """The largest of `sign * x` over `STEP` rows each, which lie a stride apart; the rest under one maximum at the end.

    Rows a stride apart are read as `STEP` streams side by side, about twice as fast as neighbouring rows.
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
    """The rows of `n` that lie under each row of their maxima, and which of the entries are rows at all."""
    stride = n // STEP
    step = torch.arange(STEP, device=row.device)
    found = torch.where((row < stride)[:, None], row[:, None] + stride * step, stride * STEP + step)
    return found.clamp_max(n - 1), found < n


def under(
    row: Int[Tensor, " cell"], key: Int[Tensor, " cell"], x: Tensor, threshold: Tensor, sign: int
) -> tuple[Int[Tensor, " found"], Int[Tensor, " found"]]:
    """The rows of `x` under cells of its maxima that reach their key's threshold."""
    rows, inside = members(row, len(x))
    cell, place = ((entries(x, rows, key) * sign >= threshold[key][:, None]) & inside).nonzero(as_tuple=True)
    return rows[cell, place], key[cell]


def entries(
    x: Float[Tensor, "row key"], rows: Int[Tensor, "cell step"], key: Int[Tensor, " cell"]
) -> Float[Tensor, "cell step"]:
    """The entries of `x` at several rows of one key for each cell."""
    if not x.is_contiguous():
        return x[rows, key[:, None]]
    # One list of places in memory: torch gathers by it more than twice as fast as by two indices.
    places = rows * x.shape[1] + key[:, None]
    return x.view(-1).index_select(0, places.flatten()).view(places.shape)

"""Sort rows of (value, position, group) by decreasing value; equal values are sorted by increasing position."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

EMPTY = torch.iinfo(torch.int64).max
"""Position of an empty slot; its value is -inf."""


def nth_largest(x: Float[Tensor, "column key"], n: int, sign: int) -> Float[Tensor, " key"]:
    """Return the n-th largest of `sign * x` over columns, for each key."""
    if n == 1:
        return x.amax(dim=0) if sign > 0 else -x.amin(dim=0)
    return sign * nth_of_rows(x.T.contiguous(), n, largest=sign > 0)


def nth_of_rows(x: Float[Tensor, "key column"], n: int, *, largest: bool = True) -> Float[Tensor, " key"]:
    """Return the n-th largest entry of every row, or the n-th smallest."""
    if x.device.type != "cpu":
        return x.topk(n, dim=1, largest=largest).values[:, -1]
    # On short rows, NumPy selects several times faster than torch. It has no bfloat16, so such rows become float32.
    rows = x.to(torch.promote_types(x.dtype, torch.float32)).numpy()
    at = rows.shape[1] - n if largest else n - 1
    return torch.from_numpy(np.partition(rows, at, axis=1)[:, at])


def at_least(x: Float[Tensor, "row key"], bound: Float[Tensor, " key"], sign: int) -> Bool[Tensor, "row key"]:
    """Mark where `sign * x` is at least the bound of its key."""
    if x.device.type != "cpu":
        return x >= bound if sign > 0 else x <= -bound
    # NumPy compares several times faster than torch. It has no bfloat16, so such rows become float32 first.
    rows = x.to(torch.promote_types(x.dtype, torch.float32)).numpy()
    return torch.from_numpy(rows >= bound.numpy() if sign > 0 else rows <= -bound.numpy())


def flat_nonzero(mask: Bool[Tensor, "row column"]) -> Int[Tensor, " found"]:
    """Return the indices of the True entries in the flattened mask."""
    if mask.device.type != "cpu":
        return mask.flatten().nonzero()[:, 0]
    return torch.from_numpy(np.flatnonzero(mask.numpy()))


def sort_stable(x: Int[Tensor, " n"]) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Sort integers from 0 to 2^31 - 1; return them with the index that each had before.

    Equal integers stay in their order.
    """
    if x.device.type != "cpu":
        values, order = x.long().sort(stable=True)
        return values, order
    # Each number and its index are packed into one integer, because sorting these integers gives the order of a stable
    # sort and is several times faster.
    both = np.sort((x.long() << 32 | torch.arange(len(x))).numpy())
    return torch.from_numpy(both >> 32), torch.from_numpy(both & 0xFFFFFFFF)


def best_of_rows(v: Tensor, p: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the `n` largest entries of each row, unsorted; of equal values, those at earlier positions."""
    nth = nth_of_rows(v, n)
    chosen = v >= nth[:, None]
    at = flat_nonzero(chosen)
    if len(at) > len(v) * n:
        is_open = nth == -torch.inf
        # In rows with fewer than n values, choose all values, and as many empty slots as are missing.
        if bool(is_open.any()):
            empty = ~(v[is_open] > -torch.inf)
            chosen[is_open] = ~empty | (empty.cumsum(dim=1) <= empty.sum(dim=1, keepdim=True) - (v.shape[1] - n))
        tied = (chosen.sum(dim=1) > n).nonzero()[:, 0]
        v[tied], p[tied], _ = sort_rows(v[tied], p[tied], None)
        chosen[tied] = torch.arange(v.shape[1], device=v.device) < n
        at = flat_nonzero(chosen)
    return v.view(-1).index_select(0, at).view(-1, n), p.view(-1).index_select(0, at).view(-1, n)


def sort_rows(v: Tensor, p: Tensor, g: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sort each row by decreasing value; equal values are sorted by increasing position."""
    v, order = v.sort(dim=1, descending=True)
    p = p.gather(1, order)
    g = None if g is None else g.gather(1, order)
    misordered = ((v[:, 1:] == v[:, :-1]) & (p[:, 1:] < p[:, :-1])).nonzero()[:, 0].unique()
    # Values are equal where prefixes are equal. Only the few rows in which equal values are not in the order of their
    # positions are sorted again.
    if len(misordered):
        by_position = p[misordered].argsort(dim=1, stable=True)
        by_value = v[misordered].gather(1, by_position).argsort(dim=1, descending=True, stable=True)
        order = by_position.gather(1, by_value)
        v[misordered], p[misordered] = v[misordered].gather(1, order), p[misordered].gather(1, order)
        if g is not None:
            g[misordered] = g[misordered].gather(1, order)
    return v, p, g


def limit_per_group(v: Tensor, p: Tensor, g: Tensor, at_most: int) -> tuple[Tensor, Tensor, Tensor]:
    """In each sorted row, empty every slot that has at least `at_most` entries of its own group before it."""
    v, p, g = v.clone(), p.clone(), g.clone()
    width = v.shape[1]
    earlier = torch.ones(width, width, dtype=torch.bool, device=v.device).tril(-1)
    rows = max(1, (1 << 24) // (width * width))
    for at in range(0, len(v), rows):
        part = slice(at, at + rows)
        better = ((g[part, :, None] == g[part, None, :]) & earlier).sum(dim=2)
        out = better >= at_most
        v[part].masked_fill_(out, -torch.inf)
        p[part].masked_fill_(out, EMPTY)
        g[part].masked_fill_(out, -1)
    v, order = v.sort(dim=1, descending=True, stable=True)
    return v, p.gather(1, order), g.gather(1, order)

"""Rows of (value, position, group) by falling value, equal values by rising position."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

EMPTY = torch.iinfo(torch.int64).max
"""Position of an empty slot; its value is -inf."""


def nth_largest(x: Float[Tensor, "column key"], n: int, sign: int) -> Float[Tensor, " key"]:
    """The n-th largest of `sign * x` over columns."""
    if n == 1:
        return x.amax(dim=0) if sign > 0 else -x.amin(dim=0)
    return sign * x.T.contiguous().topk(n, dim=1, largest=sign > 0, sorted=True).values[:, -1]


def sort_rows(v: Tensor, p: Tensor, g: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rows by falling value, equal values by rising position."""
    v, order = v.sort(dim=1, descending=True)
    p = p.gather(1, order)
    g = None if g is None else g.gather(1, order)
    misordered = ((v[:, 1:] == v[:, :-1]) & (p[:, 1:] < p[:, :-1])).nonzero()[:, 0].unique()
    if len(misordered):  # equal prefixes have equal values; few rows, so only they are sorted twice
        by_position = p[misordered].argsort(dim=1, stable=True)
        by_value = v[misordered].gather(1, by_position).argsort(dim=1, descending=True, stable=True)
        order = by_position.gather(1, by_value)
        v[misordered], p[misordered] = v[misordered].gather(1, order), p[misordered].gather(1, order)
        if g is not None:
            g[misordered] = g[misordered].gather(1, order)
    return v, p, g


def limit_per_group(v: Tensor, p: Tensor, g: Tensor, at_most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted rows without the entries that have `at_most` better ones of the same group before them."""
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

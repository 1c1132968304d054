"""Find the largest entries of a product of two thin matrices, block by block, without forming the product.

Rows and columns are visited from the longest to the shortest, so that the k-th best value is soon large. A block is
skipped if its bound |left row| |right column| (Cauchy-Schwarz) is below that value. The bound is tightest on balanced
factors, each of which contains the square roots of the singular values.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.validation import positive_int

ROWS, COLUMNS = 256, 2048
"""Rows and columns of a block; its 2 MiB in float32 stay in the processor's cache."""


class Entries(NamedTuple):
    """Entries of a matrix, best first."""

    rows: Int[Tensor, " k"]
    columns: Int[Tensor, " k"]
    values: Float[Tensor, " k"]


def balanced(left: Float[Tensor, "m r"], right: Float[Tensor, "r n"]) -> tuple[Tensor, Tensor]:
    """Return two factors with the same product, each of which contains the square roots of the singular values."""
    if min(left.shape[0], right.shape[1]) < left.shape[1]:
        return left, right
    q_left, r_left = torch.linalg.qr(left.double())
    q_right, r_right = torch.linalg.qr(right.double().mT)
    U, S, Vh = torch.linalg.svd(r_left @ r_right.mT)
    root = S.sqrt()
    dtype = torch.promote_types(left.dtype, torch.float32)
    return (q_left @ (U * root)).to(dtype), ((root[:, None] * Vh) @ q_right.mT).to(dtype)


def top(
    left: Float[Tensor, "m r"],
    right: Float[Tensor, "r n"],
    k: int,
    *,
    largest: bool = True,
    kinds: tuple[Int[Tensor, " m"], Int[Tensor, " n"]] | None = None,
) -> Entries:
    """The k largest entries of left @ right (the smallest with `largest=False`), exact up to rounding.

    Args:
        kinds: a number for each row and for each column; entries where the two are equal are left out. If the numbers
            are token ids, this leaves out the diagonal.

    Time: each entry is computed and compared at most once. Memory: the two factors and one block.
    """
    k = min(positive_int("k", k), left.shape[0] * right.shape[1])
    left, right = balanced(left, right)
    if not largest:
        left = -left
    row_norms, row_order = left.norm(dim=1).sort(descending=True)
    column_norms, column_order = right.norm(dim=0).sort(descending=True)
    left, right = left[row_order], right[:, column_order].contiguous()
    if kinds is not None:
        kinds = kinds[0].to(left.device)[row_order], kinds[1].to(left.device)[column_order]
    best = torch.empty(0, dtype=left.dtype, device=left.device)
    places = torch.empty((2, 0), dtype=torch.long, device=left.device)
    floor = -torch.inf
    buffer = torch.empty(ROWS * COLUMNS, dtype=left.dtype, device=left.device)
    n_rows, n_columns = left.shape[0], right.shape[1]
    for i in range(0, n_rows, ROWS):
        some = left[i : i + ROWS]
        if float(row_norms[i] * column_norms[0]) < floor:
            break
        for j in range(0, n_columns, COLUMNS):
            if float(row_norms[i] * column_norms[j]) < floor:
                break
            block = buffer[: len(some) * min(COLUMNS, n_columns - j)].view(len(some), -1)
            torch.mm(some, right[:, j : j + COLUMNS], out=block)
            if kinds is not None:
                block[kinds[0][i : i + ROWS, None] == kinds[1][j : j + COLUMNS]] = -torch.inf
            if float(block.max()) <= floor:
                continue
            best, places = _merged(best, places, block, (i, j), k, floor)
            floor = float(best[-1]) if len(best) == k else -torch.inf
    if kinds is not None:  # fewer than k entries may be left
        kept = best > -torch.inf
        best, places = best[kept], places[:, kept]
    values = best if largest else -best
    return Entries(row_order[places[0]], column_order[places[1]], values)


def _merged(
    best: Tensor, places: Tensor, block: Tensor, corner: tuple[int, int], k: int, floor: float
) -> tuple[Tensor, Tensor]:
    """Merge the best entries so far with those of a block that exceed `floor`, and return the k best."""
    flat = block.flatten()
    if floor == -torch.inf:
        found = flat.topk(min(k, flat.numel())).indices
    else:
        found = (flat > floor).nonzero()[:, 0]
        if len(found) > k:
            found = found[flat[found].topk(k).indices]
    width = block.shape[1]
    here = torch.stack([corner[0] + found // width, corner[1] + found % width])
    values, places = torch.cat([best, flat[found]]), torch.cat([places, here], dim=1)
    order = values.argsort(descending=True, stable=True)[:k]
    return values[order], places[:, order]

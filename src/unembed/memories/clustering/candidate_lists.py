"""Find the rows most similar to each row: the candidate lists with which average linkage starts.

The similarity of each pair is computed once, in square tiles; only the maxima of groups of columns are stored.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from unembed.memories.clustering.dendrogram import NONE

_CHOSEN, _PER_GROUP = 6, 8
"""Number of groups of rows from which candidates are taken for a row, and largest number taken from each group."""


def first_lists(
    means: Float32[Tensor, "n d"], group: int, tile: int, listed: int, progress: Callable[[int], None]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows most similar to each row, their similarities, and an upper bound on all other similarities.

    First the largest similarity of each row to each group of `group` rows is computed, each pair of rows only once.
    Then candidates are taken from the groups with the largest maxima; the similarities to all rows of the other groups
    are at most the largest maximum of those groups.

    Args:
        means: vectors of length at most 1.
        group, tile: see `average_linkage`.
        listed: number of candidates for each row.
        progress: called with the share of the work that is done, multiplied by n.
    """
    maxima = _group_maxima(means, group, tile, progress)
    n, n_groups = maxima.shape
    chosen = min(_CHOSEN, n_groups - 1)
    best, groups = maxima.topk(chosen + 1, dim=1)
    bound = best[:, chosen].clone()
    groups = groups[:, :chosen].flatten()
    del maxima, best
    deep = min(_PER_GROUP, group - 1)
    inside = torch.full((n * chosen, deep), -torch.inf, device=means.device)
    ids = torch.full((n * chosen, deep), NONE, device=means.device)
    beyond = torch.full((n * chosen,), -torch.inf, device=means.device)
    order = groups.argsort(stable=True)
    ends = torch.bincount(groups, minlength=n_groups).cumsum(0).tolist()
    for g, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        places = order[start:end]
        low, high = g * group, min((g + 1) * group, n)
        for part in places.split(8192):
            rows = part // chosen
            scores = means[rows] @ means[low:high].T
            own = (rows >= low) & (rows < high)
            scores[own.nonzero()[:, 0], rows[own] - low] = -torch.inf
            width = min(deep + 1, high - low)
            values, at = scores.topk(width, dim=1)
            count = min(deep, width)
            inside[part, :count], ids[part, :count] = values[:, :count], at[:, :count] + low
            if width > deep:
                beyond[part] = values[:, deep]
    inside, ids = inside.view(n, -1), ids.view(n, -1)
    width = min(listed + 1, inside.shape[1])
    values, at = inside.topk(width, dim=1)
    bound = torch.maximum(bound, beyond.view(n, -1).amax(dim=1))
    if width > listed:
        bound = torch.maximum(bound, values[:, listed])
    out_ids = np.full((n, listed), NONE, dtype=np.int64)
    out_values = np.full((n, listed), -np.inf)
    count = min(width, listed)
    out_values[:, :count] = values[:, :count].cpu().numpy()
    out_ids[:, :count] = ids.gather(1, at)[:, :count].cpu().numpy()
    out_ids[~np.isfinite(out_values)] = NONE
    return out_ids, out_values, bound.double().cpu().numpy()


def _group_maxima(
    means: Float32[Tensor, "n d"], group: int, tile: int, progress: Callable[[int], None]
) -> Float32[Tensor, "n groups"]:
    """Return each row's largest similarity to the rows of each group of consecutive rows, itself excluded."""
    n = len(means)
    out = torch.empty(n, -(-n // group), device=means.device)
    room = torch.empty(tile, tile, device=means.device)
    for i in range(0, n, tile):
        rows = means[i : i + tile]
        for j in range(i, n, tile):
            columns = means[j : j + tile]
            scores = room.flatten()[: len(rows) * len(columns)].view(len(rows), len(columns))
            torch.mm(rows, columns.T, out=scores)
            if i == j:
                scores.fill_diagonal_(-torch.inf)
            out[i : i + len(rows), j // group : -(-(j + len(columns)) // group)] = _maxima(scores, group, dim=1)
            if i != j:
                there = out[j : j + len(columns), i // group : -(-(i + len(rows)) // group)]
                there.copy_(_maxima(scores, group, dim=0).T)
        rest = max(n - i - tile, 0)
        progress(round(n * (1 - (rest / n) ** 2)))
    return out


def _maxima(scores: Tensor, group: int, dim: int) -> Tensor:
    """Return the maxima over groups of `group` rows (dim 0) or columns (dim 1); the last group may be smaller."""
    whole = scores.shape[dim] // group * group
    head = scores.narrow(dim, 0, whole).unflatten(dim, (-1, group)).amax(dim=dim + 1)
    if whole == scores.shape[dim]:
        return head
    return torch.cat([head, scores.narrow(dim, whole, scores.shape[dim] - whole).amax(dim=dim, keepdim=True)], dim=dim)

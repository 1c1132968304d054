"""Exact agglomerative clustering under cosine distance, in memory that grows with n, not with n squared.

Average linkage needs no distance matrix: the average similarity of two clusters is the dot product of the means of
their unit vectors. The tree grows in rounds. Each round merges every pair of clusters that are each other's nearest;
average linkage is reducible, so that gives the same tree as merging one closest pair at a time. Each cluster has a
short list of candidates for its nearest cluster, and an upper bound on its similarity to every cluster that is not on
the list. A merge only averages similarities, so lists and bounds can be updated without a new comparison:

- if a candidate has merged with other clusters, the average of its known similarities and the list's bound is an upper
  bound on its new similarity;
- a new cluster takes the lists of both clusters that it joins, with similarities and bounds averaged by their sizes;
- a similarity is computed exactly only if that candidate could be the nearest, and a cluster is compared with all
  others again only if its best candidate falls below its bound.

The only comparison of all pairs, at the start, computes each pair once and stores the maxima of groups of columns
(`unembed.memories.clustering.candidate_lists`).

Special cases: a zero vector has no direction, so its similarity to other vectors is set to 0, and all zero vectors
count as equal; equal directions merge first, at height 0; if several pairs are equally similar, any of them may merge
first, and the same input always gives the same tree.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from unembed.lens import top_k
from unembed.memories.clustering.candidate_lists import first_lists
from unembed.memories.clustering.dendrogram import NONE, Dendrogram, Tree
from unembed.memories.clustering.unit_vectors import equal_rows, unit_rows

LISTED = 16
"""Number of candidates for its nearest cluster that are listed for each cluster."""
_TILE, _GROUP, _ROWS = 2048, 128, 256
_NOTHING_ELSE = -2.0
"""The bound of a cluster whose list contains all other clusters: no cluster is outside the list, so any number below
all similarities is correct. It is finite because bounds are averaged."""


def average_linkage(
    vectors: Tensor,
    *,
    group: int = _GROUP,
    tile: int = _TILE,
    progress: Callable[[int, int], None] | None = None,
) -> Dendrogram:
    """Return the average-linkage tree under cosine distance, exact up to float32 rounding of the directions.

    Args:
        vectors: (n, d), any float dtype, on any device.
        group: number of columns in a group; the first comparison stores only the largest similarity of each group.
        tile: number of rows, and of columns, compared at once; a multiple of `group`.
        progress: called with the number of steps done and their total; a step compares one vector with all others, or
            merges two clusters.

    Raises:
        InvalidInput: the vectors are not a matrix, are empty, or hold NaN or infinity.

    Memory: 4 n d bytes for the directions, 4 n * n / group for the group maxima, 4 tile * tile, about 400 n for lists.

    Source: Geva et al. 2022, section 5.2 ("agglomerative clustering", Müllner 2011); mutual nearest neighbours are
        exact for reducible linkages (Bruynooghe 1978).
    """
    directions = unit_rows(vectors)
    first_of, distinct = equal_rows(directions)
    tree = Tree(len(directions))
    unique = directions if len(distinct) == len(directions) else directions[torch.from_numpy(distinct)]
    roots = tree.merge_equal(first_of, distinct)
    if len(roots) > 1:
        _Clusters(unique, roots, tree, group, tile, progress or (lambda _done, _all: None)).run()
    return tree.sorted()


class _Clusters:
    """The current clusters of average linkage, one in each row: mean vector, list of candidates and bound."""

    def __init__(
        self,
        means: Float32[Tensor, "n d"],
        nodes: np.ndarray,
        tree: Tree,
        group: int,
        tile: int,
        progress: Callable[[int, int], None],
    ) -> None:
        self.means, self.node, self.tree, self.progress = means, nodes.copy(), tree, progress
        n, d = means.shape
        self.row_of = np.full(len(tree.parent), NONE, dtype=np.int64)
        self.row_of[nodes] = np.arange(n)
        # The largest rounding error of a similarity: for vectors of length at most 1, a float32 dot product has an
        # error of at most d * 2^-24; the added 1e-6 allows for the rounding of the means.
        self.slack = d * 2.0**-24 + 1e-6
        if n > 2 * tile:
            ids, values, self.bound = first_lists(means, group, tile, LISTED, lambda rows: progress(rows, 2 * n - 1))
        else:
            ids, values, self.bound = self._compared(np.arange(n))
        self.listed = np.where(ids >= 0, nodes[ids], NONE)
        self.value = values + self.slack * (ids >= 0)
        self.bound += self.slack
        self.known = np.zeros(ids.shape, dtype=bool)
        self.nearest = np.full(n, NONE, dtype=np.int64)
        self.similarity = np.full(n, -np.inf)

    def run(self) -> None:
        n = len(self.node)
        rows, to_merge = np.arange(n), len(self.tree.parent) - self.tree.made
        while self.tree.made < len(self.tree.parent):
            self._find_nearest(rows)
            pairs = self._mutual()
            rows = self._merge(pairs)
            self.progress(n + to_merge - (len(self.tree.parent) - self.tree.made), n + to_merge)
            alive = int((self.node >= 0).sum())
            if alive < 0.6 * len(self.node):
                rows = self._compact(rows)

    def _mutual(self) -> np.ndarray:
        """Return the pairs of rows that are each other's nearest.

        With ties there may be no such pair; then return disjoint pairs with the highest similarity.
        """
        alive = np.flatnonzero(self.node >= 0)
        other = self.row_of[self.nearest[alive]]
        mutual = (self.nearest[other] == self.node[alive]) & (alive < other)
        if mutual.any():
            return np.column_stack([alive[mutual], other[mutual]])
        taken: set[int] = set()
        pairs = []
        for a in alive[self.similarity[alive] == self.similarity[alive].max()].tolist():
            b = int(self.row_of[self.nearest[a]])
            if a not in taken and b not in taken:
                taken |= {a, b}
                pairs.append((a, b))
        return np.array(pairs)

    def _merge(self, pairs: np.ndarray) -> np.ndarray:
        """Merge each pair of rows into its first row; return the rows that need a new nearest cluster."""
        a, b = pairs.T
        sizes = self.tree.size[self.node[pairs]].astype(np.float64)
        weights = sizes / sizes.sum(axis=1, keepdims=True)
        new = self.tree.merge(self.node[pairs], 1 - self.similarity[a])
        for part in np.array_split(np.arange(len(a)), max(1, len(a) // 4096)):
            w = torch.from_numpy(weights[part]).to(self.means)
            first, second = self._rows(a[part]), self._rows(b[part])
            self.means[torch.from_numpy(a[part])] = first * w[:, :1] + second * w[:, 1:]
        self.node[a], self.node[b] = new, NONE
        self.row_of[new] = a
        self._join_lists(a, b, weights)
        stale = (self.node >= 0) & (self.tree.parent[np.maximum(self.nearest, 0)] >= 0)
        stale[a] = True
        return np.flatnonzero(stale)

    def _join_lists(self, a: np.ndarray, b: np.ndarray, weights: np.ndarray) -> None:
        """Merge the candidate lists of each pair of clusters that were merged.

        For a candidate on only one of the two lists, the bound of the other list is used as the missing similarity.
        """
        mine, theirs = self._current(a, self.node[a]), self._current(b, self.node[a])
        ids = np.concatenate([mine[0], theirs[0]], axis=1)
        wa, wb = weights[:, :1], weights[:, 1:]
        own = np.concatenate([mine[1] * wa, theirs[1] * wb], axis=1)
        width = mine[0].shape[1]
        unlisted = [
            np.repeat(wb * self.bound[b, None], width, axis=1),
            np.repeat(wa * self.bound[a, None], width, axis=1),
        ]
        missing = np.concatenate(unlisted, axis=1)
        known = np.concatenate([mine[2], theirs[2]], axis=1)
        order = np.argsort(ids, axis=1, kind="stable")
        ids, own, missing, known = (np.take_along_axis(t, order, axis=1) for t in (ids, own, missing, known))
        twin = np.zeros(ids.shape, dtype=bool)
        twin[:, 1:] = (ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] >= 0)
        next_twin = np.roll(twin, -1, axis=1)
        next_twin[:, -1] = False
        value = own + np.where(next_twin, np.roll(own, -1, axis=1), missing)
        known = known & next_twin & np.roll(known, -1, axis=1)
        ids = np.where(twin, NONE, ids)
        value = np.where(ids >= 0, value, -np.inf)
        bound = weights[:, 0] * self.bound[a] + weights[:, 1] * self.bound[b]
        order = np.argsort(-value, axis=1, kind="stable")
        ids, value, known = (np.take_along_axis(t, order, axis=1) for t in (ids, value, known))
        self.bound[a] = np.maximum(bound, value[:, LISTED])
        self.listed[a], self.value[a], self.known[a] = ids[:, :LISTED], value[:, :LISTED], known[:, :LISTED]

    def _current(self, rows: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Update each row's candidates for the merges so far: a candidate that was merged becomes the merged cluster.

        Returns the candidates' nodes (`NONE` where a list has fewer), upper bounds on the similarities to them, and
        whether each bound is the exact similarity.
        """
        listed, value, known = self.listed[rows], self.value[rows], self.known[rows]
        root = self.tree.roots(listed)
        root[root == own[:, None]] = NONE
        if (root == listed).all():
            return root, value, known
        order = np.argsort(root, axis=1, kind="stable")
        root, listed = np.take_along_axis(root, order, axis=1), np.take_along_axis(listed, order, axis=1)
        value, known = np.take_along_axis(value, order, axis=1), np.take_along_axis(known, order, axis=1)
        starts = np.ones(root.shape, dtype=bool)
        starts[:, 1:] = root[:, 1:] != root[:, :-1]
        at = np.flatnonzero(starts.ravel())
        filled = root.ravel() >= 0
        part = np.where(filled, self.tree.size[listed.ravel()], 0).astype(np.float64)
        whole = np.where(filled[at], self.tree.size[root.ravel()[at]], 1).astype(np.float64)
        covered = np.add.reduceat(part, at)
        summed = np.add.reduceat(part * np.where(filled, value.ravel(), 0.0), at)
        bounds = np.broadcast_to(self.bound[rows][:, None], root.shape).ravel()[at]
        rest = np.where(whole > covered, (whole - covered) * bounds, 0.0)
        exact = np.logical_and.reduceat(known.ravel(), at) & (whole == covered)
        ids_out = np.full(root.size, NONE, dtype=np.int64)
        value_out = np.full(root.size, -np.inf)
        known_out = np.zeros(root.size, dtype=bool)
        ids_out[at] = root.ravel()[at]
        value_out[at] = np.where(filled[at], (summed + rest) / whole, -np.inf)
        known_out[at] = exact & filled[at]
        return ids_out.reshape(root.shape), value_out.reshape(root.shape), known_out.reshape(root.shape)

    def _find_nearest(self, rows: np.ndarray) -> None:
        """Set each row's nearest cluster.

        It is the best candidate, if the row's bound proves that no cluster outside the list is more similar. Otherwise
        the row is compared with all clusters.
        """
        ids, value, known = self._current(rows, self.node[rows])
        open_rows = np.arange(len(rows))
        while len(open_rows):
            best = value[open_rows].argmax(axis=1)
            doubtful = ~known[open_rows, best] & (value[open_rows, best] >= self.bound[rows[open_rows]])
            open_rows, best = open_rows[doubtful], best[doubtful]
            if len(open_rows):
                value[open_rows, best] = self._dots(rows[open_rows], self.row_of[ids[open_rows, best]])
                known[open_rows, best] = True
        self.listed[rows], self.value[rows], self.known[rows] = ids, value, known
        best = value.argmax(axis=1)
        at = np.arange(len(rows))
        proven = known[at, best] & (value[at, best] >= self.bound[rows])
        self.nearest[rows], self.similarity[rows] = ids[at, best], value[at, best]
        if not proven.all():
            self._compare_anew(rows[~proven])

    def _compare_anew(self, rows: np.ndarray) -> None:
        ids, values, bound = self._compared(rows)
        self.listed[rows] = np.where(ids >= 0, self.node[ids], NONE)
        self.value[rows], self.bound[rows] = values + self.slack * (ids >= 0), bound + self.slack
        self.known[rows] = False
        # The rows were just compared with all clusters, so each row's nearest cluster is in its candidate list, and the
        # upper bound on the similarity to clusters outside the list need not be checked.
        self._find_listed(rows)

    def _find_listed(self, rows: np.ndarray) -> None:
        """Set each row's nearest cluster after a comparison with all clusters.

        The similarity is computed exactly for every candidate that may be the most similar one, given the possible
        rounding errors.
        """
        value, known = self.value[rows], self.known[rows]
        rivals = value >= value[:, :1] - 2 * self.slack
        r, c = np.nonzero(rivals & (self.listed[rows] >= 0))
        value[r, c] = self._dots(rows[r], self.row_of[self.listed[rows][r, c]])
        known[r, c] = True
        self.value[rows], self.known[rows] = value, known
        best = np.where(known, value, -np.inf).argmax(axis=1)
        at = np.arange(len(rows))
        self.nearest[rows], self.similarity[rows] = self.listed[rows, best], value[at, best]

    def _compared(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compare rows with all clusters.

        Returns the most similar clusters, their similarities, and an upper bound on the similarities of all others.
        """
        dead = torch.from_numpy(self.node < 0).to(self.means.device)
        width = min(LISTED + 1, len(self.node))
        ids = np.full((len(rows), LISTED), NONE, dtype=np.int64)
        values = np.full((len(rows), LISTED), -np.inf)
        bound = np.full(len(rows), _NOTHING_ELSE)
        for start in range(0, len(rows), _ROWS):
            part = slice(start, min(start + _ROWS, len(rows)))
            scores = self._rows(rows[part]) @ self.means.T
            scores.masked_fill_(dead, -torch.inf)
            scores[torch.arange(len(scores)), torch.from_numpy(rows[part])] = -torch.inf
            best, at = (t.cpu().numpy() for t in top_k(scores, width))
            count = min(width, LISTED)
            values[part, :count] = best[:, :count]
            ids[part, :count] = np.where(np.isfinite(best[:, :count]), at[:, :count], NONE)
            if width > LISTED:
                bound[part] = np.maximum(best[:, LISTED], _NOTHING_ELSE)
        return ids, values, bound

    def _compact(self, rows: np.ndarray) -> np.ndarray:
        """Remove rows that were merged into others; return the new row numbers of `rows`."""
        alive = np.flatnonzero(self.node >= 0)
        place = np.full(len(self.node), NONE, dtype=np.int64)
        place[alive] = np.arange(len(alive))
        # Rows only move to lower row numbers. They are moved in increasing order, so no row is overwritten before it
        # has been moved itself, and no second matrix of means is needed.
        for part in np.array_split(np.arange(len(alive)), max(1, len(alive) // 8192)):
            self.means[torch.from_numpy(part)] = self._rows(alive[part])
        self.means = self.means[: len(alive)]
        for name in ("node", "listed", "value", "known", "bound", "nearest", "similarity"):
            setattr(self, name, getattr(self, name)[alive])
        self.row_of[self.node] = np.arange(len(alive))
        return place[rows]

    def _rows(self, rows: np.ndarray) -> Tensor:
        return self.means[torch.from_numpy(rows)]

    def _dots(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        out = np.empty(len(a))
        for start in range(0, len(a), 2048):
            part = slice(start, start + 2048)
            out[part] = (self._rows(a[part]).double() * self._rows(b[part])).sum(dim=1).cpu().numpy()
        return out

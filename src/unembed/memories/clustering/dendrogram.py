"""The tree of merges of a clustering: `Tree` while it is being built, and `Dendrogram` when it is finished."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from unembed.errors import OutOfRange

NONE = -1
"""The number that is stored where there is no node."""


@dataclass(frozen=True, eq=False)
class Dendrogram:
    """The finished tree, as in SciPy's linkage matrix: merges sorted by height; merge i creates node n + i."""

    n: int
    children: Int[np.ndarray, "merge 2"]
    heights: Float[np.ndarray, " merge"]
    """Cosine distance (1 - similarity) at which each merge happens, in non-decreasing order."""
    sizes: Int[np.ndarray, " merge"]

    def cut(self, n_clusters: int) -> Int[np.ndarray, " n"]:
        """Return labels of exactly `n_clusters` clusters, numbered by first appearance.

        Raises:
            OutOfRange: fewer than one cluster, or more than there are vectors.
        """
        if not 1 <= n_clusters <= self.n:
            raise OutOfRange(f"{n_clusters} clusters", why=f"{self.n} vectors can form 1 to {self.n} clusters")
        merges = self.n - n_clusters
        top = np.arange(self.n + merges)
        for i in range(merges - 1, -1, -1):
            top[self.children[i]] = top[self.n + i]
        _, first, labels = np.unique(top[: self.n], return_index=True, return_inverse=True)
        order = np.empty(len(first), dtype=np.int64)
        order[np.argsort(first)] = np.arange(len(first))
        return order[labels]

    def linkage(self) -> Float[np.ndarray, "merge 4"]:
        """Return the linkage matrix that the functions of `scipy.cluster.hierarchy` take."""
        return np.column_stack([self.children.astype(float), self.heights, self.sizes.astype(float)])


class Tree:
    """A tree that is being built. Its nodes are the vectors, then the merges in the order in which they are found."""

    def __init__(self, n: int) -> None:
        self.n, self.made = n, n
        self.parent = np.full(2 * n - 1, NONE, dtype=np.int64)
        self.size = np.ones(2 * n - 1, dtype=np.int64)
        self.pair = np.zeros((max(n - 1, 0), 2), dtype=np.int64)
        self.height = np.zeros(max(n - 1, 0))

    def merge_equal(self, first_of: np.ndarray, distinct: np.ndarray) -> np.ndarray:
        """Merge equal vectors at height 0, and return the node of each distinct vector.

        Args:
            first_of: for each vector, the number of the first vector equal to it.
            distinct: the numbers of these first vectors.
        """
        root = np.arange(self.n)
        for i in np.flatnonzero(first_of != np.arange(self.n)).tolist():
            root[first_of[i]] = self.merge(np.array([[root[first_of[i]], i]]), np.zeros(1))[0]
        return root[distinct]

    def merge(self, pairs: np.ndarray, heights: np.ndarray) -> np.ndarray:
        """Merge pairs of nodes, and return the new nodes.

        A new node is never lower than the nodes that it joins: a height that rounding made smaller is raised.
        """
        new = np.arange(self.made, self.made + len(pairs))
        at = new - self.n
        self.pair[at] = pairs
        below = np.where(pairs >= self.n, self.height[np.maximum(pairs - self.n, 0)], 0.0).max(axis=1)
        self.height[at] = np.maximum(heights, below)
        self.parent[pairs] = new[:, None]
        self.size[new] = self.size[pairs].sum(axis=1)
        self.made += len(pairs)
        return new

    def roots(self, nodes: np.ndarray) -> np.ndarray:
        """Return the root of each node's tree, which is the cluster that the node is in now; `NONE` stays `NONE`."""
        found = nodes.copy()
        while True:
            up = np.where(found >= 0, self.parent[found], NONE)
            if (up < 0).all():
                return found
            found = np.where(up >= 0, up, found)

    def sorted(self) -> Dendrogram:
        """Return the finished tree, with merges sorted by height; a node comes after the nodes that it joins."""
        order = np.argsort(self.height, kind="stable")
        name = np.arange(2 * self.n - 1)
        name[self.n + order] = self.n + np.arange(len(order))
        children = np.sort(name[self.pair[order]], axis=1)
        return Dendrogram(self.n, children, self.height[order], self.size[self.n + order])

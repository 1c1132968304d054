"""Cluster all value vectors of a model, and describe the cluster to which a memory (FFN neuron) belongs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from unembed.index.arrays import store_derived, stored_derived
from unembed.index.index_files import IndexFiles
from unembed.memories.clustering.dendrogram import Dendrogram
from unembed.memories.clustering.unit_vectors import unit_rows
from unembed.memories.clustering.value_clusters import ValueClusters, cluster_values, coherence
from unembed.memories.values import Values, values_of
from unembed.models.decoder import Decoder

SCHEMA = "unembed.cluster/1"
FILE = "clusters.npz"
"""The file in an index's folder with the clustering tree of all value vectors and the fingerprint of the weights."""
_TREE = ("children", "heights", "sizes", "memory")
_COUNTED, _TOP, _SHOWN = 64, 30, 8


@dataclass(frozen=True)
class Near:
    """Another memory of the cluster, and the cosine of its value vector with that of the described memory."""

    layer: int
    index: int
    cosine: float


@dataclass(frozen=True)
class ClusterView:
    """The cluster of a memory (FFN neuron); `cluster` is None while the value vectors are not clustered yet."""

    schema: str
    layer: int
    index: int
    values: int
    """Number of value vectors of the model."""
    n_clusters: int
    """Number of clusters: one for every ten value vectors, as in `unembed clusters`."""
    linkage: str
    cluster: int | None
    size: int
    """Number of members of the cluster, this memory included."""
    coherence: float | None
    """The mean cosine similarity over all pairs of members; None if the memory is the only member."""
    by_layer: list[int]
    shared: list[tuple[str, int]]
    """Tokens among the 30 top tokens of several members, each with the number of these members, largest first."""
    counted: int
    """Number of members whose top tokens were counted for `shared`: all, or the 64 nearest."""
    members: list[Near]
    """The nearest other members, at most 8."""


def n_clusters_of(lm: Decoder) -> int:
    """Return the number of clusters: one for every ten value vectors."""
    return max(1, lm.n_memories // 10)


def stored_clusters(lm: Decoder, files: IndexFiles) -> ValueClusters | None:
    """Return the clusters stored with an index; None if there are none, or if they are of other weights."""
    stored = stored_derived(files.path / FILE, files.manifest.weights, _TREE)
    if stored is None:
        return None
    memory = stored.pop("memory")
    tree = Dendrogram(len(memory), **stored)
    return ValueClusters(lm, lm.memory_layers, tree, memory, tree.cut(n_clusters_of(lm)), "average")


def made_clusters(
    lm: Decoder, files: IndexFiles | None = None, progress: Callable[[int, int], None] | None = None
) -> ValueClusters:
    """Cluster all value vectors, and store the result with the index if its folder is writable.

    Args:
        files: an index of the model, if there is one.
        progress: called with the number of steps done and their total; if it raises an exception, nothing is stored.

    Raises:
        Unsupported: the model has no memories.
    """
    found = cluster_values(lm, n_clusters_of(lm), progress=progress)
    if files is not None:
        tree = found.tree
        arrays = {"children": tree.children, "heights": tree.heights, "sizes": tree.sizes, "memory": found.memory}
        store_derived(files.path / FILE, files.manifest.weights, **arrays)
    return found


@torch.no_grad()
def cluster_view(lm: Decoder, clusters: ValueClusters | None, layer: int, index: int) -> ClusterView:
    """Describe the cluster of a memory: the tokens that its members share, and the nearest members.

    Args:
        clusters: the clusters of all value vectors, or None if they are not clustered yet.

    Raises:
        OutOfRange: there is no such memory.
    """
    layer, index = lm.memory(layer, index)
    values, cut = lm.n_memories, n_clusters_of(lm)
    if clusters is None:
        return ClusterView(SCHEMA, layer, index, values, cut, "average", None, 0, None, [], [], 0, [])
    number = clusters.of(layer, index)
    members = clusters.members(number)
    units = unit_rows(values_of(lm, members).float())
    cosines = (units @ units[members.index((layer, index))]).tolist()
    order = sorted(range(len(members)), key=lambda i: (members[i] != (layer, index), -cosines[i]))
    counted = [members[i] for i in order[:_COUNTED]]
    others = [Near(*members[i], cosines[i]) for i in order[1 : _SHOWN + 1]]
    by_layer = np.bincount([n for n, _ in members], minlength=lm.n_layers).tolist()
    return ClusterView(
        SCHEMA,
        layer,
        index,
        values,
        clusters.n_clusters,
        clusters.linkage,
        number,
        len(members),
        coherence(units),
        by_layer,
        _shared(lm, counted),
        len(counted),
        others,
    )


def _shared(lm: Decoder, members: Iterable[tuple[int, int]]) -> list[tuple[str, int]]:
    members, found = list(members), Counter[int]()
    for layer in {n for n, _ in members}:
        ids, _ = Values(lm).top(layer, [i for n, i in members if n == layer], _TOP)
        for row in ids.tolist():
            found.update(row)
    shown = sorted(((token, n) for token, n in found.items() if n > 1), key=lambda pair: (-pair[1], pair[0]))[:12]
    return list(zip(lm.token_strings([token for token, _ in shown]), (n for _, n in shown), strict=True))

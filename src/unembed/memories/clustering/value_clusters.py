"""Cluster all value vectors of a model by cosine distance, and describe every cluster.

A value vector is a row of W_out, times the gain of a norm that follows the FFN where there is one. Source: Geva et al.
2022, section 5.2, where an average-linkage tree of all value vectors is cut into 10,000 clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from unembed.errors import InvalidInput, OutOfRange
from unembed.jacobian.basis import basis_or_default, carried_parts
from unembed.lens import comparable_basis, read
from unembed.memories.clustering.average_linkage import average_linkage
from unembed.memories.clustering.complete_linkage import complete_linkage
from unembed.memories.clustering.dendrogram import Dendrogram
from unembed.memories.clustering.unit_vectors import unit_rows
from unembed.memories.values import values_of, written_values
from unembed.models.decoder import Decoder, require_decoder
from unembed.names import MemoryIndex
from unembed.results import Displayed, Provenance, Table
from unembed.validation import as_int, as_tuple, one_of

_SUMMARY = ("cluster", "size", "first_layer", "last_layer", "by_layer", "coherence", "top_tokens", "members")
LINKAGES = {"average": average_linkage, "complete": complete_linkage}


def dendrogram(
    vectors: Shaped[Tensor, "n d"] | Shaped[np.ndarray, "n d"],
    linkage: str = "average",
    metric: str = "cosine",
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Dendrogram:
    """Compute the whole tree of merges, which can be cut at any number of clusters.

    Arguments and errors are those of `cluster`.

    Args:
        progress: called with the number of steps done and their total; an exception that it raises ends the work.
    """
    one_of("linkage", linkage, LINKAGES)
    if metric != "cosine":
        raise InvalidInput(
            f"metric {metric!r}",
            why="vectors are clustered by cosine distance only",
            instead="Use 'cosine'",
        )
    try:
        rows = torch.as_tensor(vectors)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            "vectors", why=str(error), instead="Give a matrix: one row of numbers for each vector"
        ) from error
    return LINKAGES[linkage](rows, progress=progress)


def cluster(
    vectors: Shaped[Tensor, "n d"] | Shaped[np.ndarray, "n d"],
    n_clusters: int,
    linkage: str = "average",
    metric: str = "cosine",
) -> Int[Tensor, " n"]:
    """Return the cluster of every vector, numbered by first appearance, by exact agglomerative clustering.

    Args:
        vectors: one vector per row.
        n_clusters: how many clusters to cut the tree into.
        linkage: "average" (memory linear in n) or "complete" (needs the full distance matrix: for small sets).
        metric: "cosine", the only one supported.

    Raises:
        InvalidInput: another linkage or metric, or vectors that are not a finite matrix.
        OutOfRange: fewer than one cluster, or more than there are vectors.
        Unsupported: complete linkage of too many vectors.

    Memory: see `unembed.memories.clustering.average_linkage`.
    """
    n, n_clusters = len(as_tuple("vectors", vectors)), as_int("n_clusters", n_clusters)
    if not 1 <= n_clusters <= max(n, 1):
        raise OutOfRange(f"{n_clusters} clusters", why=f"{n} vectors can form 1 to {n} clusters")
    return torch.from_numpy(dendrogram(vectors, linkage, metric).cut(n_clusters))


@dataclass(frozen=True, eq=False, repr=False)
class ValueClusters(Displayed):
    """Clusters of the value vectors of some layers; `cut` cuts the same tree into another number of clusters."""

    lm: Decoder
    layers: tuple[int, ...]
    tree: Dendrogram
    memory: Int[np.ndarray, "value 2"]
    """Layer and index of every value vector, in the order of `labels`."""
    labels: Int[np.ndarray, " value"]
    linkage: str
    signs: Float[np.ndarray, " value"] | None = None
    """The sign by which each value vector was multiplied, 1 or -1, in the order of `labels`; None if not multiplied."""

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return int(self.labels.max()) + 1

    @property
    def by_layer(self) -> Int[np.ndarray, "layer d_mlp"]:
        """The cluster of every value vector, by layer and index; -1 where a layer is narrower or was not clustered."""
        labels = np.full((self.lm.n_layers, int(self.memory[:, 1].max()) + 1), -1, dtype=np.int64)
        labels[self.memory[:, 0], self.memory[:, 1]] = self.labels
        return labels

    def cut(self, n_clusters: int) -> ValueClusters:
        """Cut the same tree into another number of clusters.

        Raises:
            OutOfRange: fewer than one cluster, or more than there are values.
        """
        return replace(self, labels=self.tree.cut(n_clusters))

    def members(self, number: int) -> list[tuple[int, int]]:
        """Return the layer and index of every memory (FFN neuron) whose value vector is in a cluster.

        Raises:
            OutOfRange: there is no such cluster.
        """
        if not 0 <= number < self.n_clusters:
            raise OutOfRange(
                f"cluster {number}", why=f"there are {self.n_clusters}, counted 0 to {self.n_clusters - 1}"
            )
        return [(layer, index) for layer, index in self.memory[self.labels == number].tolist()]

    def of(self, layer: int, index: MemoryIndex) -> int:
        """Return the number of the cluster that contains a memory's value vector.

        Raises:
            OutOfRange: there is no such memory, or its layer was not clustered.
        """
        layer, index = self.lm.memory(layer, index)
        at = np.flatnonzero((self.memory == (layer, index)).all(axis=1))
        if not len(at):
            raise OutOfRange(f"layer {layer}", why=f"only layers {', '.join(map(str, self.layers))} were clustered")
        return int(self.labels[at[0]])

    @torch.no_grad()
    def cards(
        self,
        top: int = 20,
        *,
        tokens: int = 10,
        numbers: Sequence[int] | None = None,
        show_unlearned: bool = False,
    ) -> Table:
        """Return a table with one row for each of the `top` largest clusters, or for each cluster in `numbers`.

        Columns: cluster, size, first and last layer, number of members in each layer, coherence (the mean cosine
        similarity of two different members; None for one member), the top tokens of the centre, and the names of up to
        eight members. The centre is the mean of the members' unit vectors. If the model has a fitted lens, it maps each
        unit vector from its layer to the final stream. The tokens' scores are the product of the centre with W_U; in a
        model with an adaptive softmax, they are log-probabilities. Tokens that the model never learned are left out,
        unless `show_unlearned`.

        Raises:
            OutOfRange: there is no cluster of this number.
        """
        hidden, plain = None if show_unlearned else self.lm.unlisted, comparable_basis(self.lm)
        basis = basis_or_default(self.lm, None, plain)
        sizes = np.bincount(self.labels)
        chosen = np.argsort(-sizes, kind="stable")[:top].tolist() if numbers is None else list(numbers)
        rows = []
        for number in chosen:
            members = self.members(number)
            values = values_of(self.lm, members).float()
            if self.signs is not None:
                values *= torch.from_numpy(self.signs[self.labels == number]).to(values)[:, None]
            units = unit_rows(values)
            # The centre gets the mean length of the members. With W_U, the order of the tokens does not depend on the
            # length of the vector, but with an adaptive softmax it does.
            centre = units.mean(dim=0) * values.norm(dim=1).mean()
            if basis == "jacobian":
                centre = _carried_centre(self.lm, members, units)
            read_in = "raw" if basis == "jacobian" else basis
            ids = read(self.lm, centre[None].to(self.lm.dtype), tokens, basis=read_in, hidden=hidden).ids[0]
            layers = [layer for layer, _ in members]
            by_layer = np.bincount(layers, minlength=self.lm.n_layers).tolist()
            names = [self.lm.memory_name(*memory) for memory in members[:8]]
            extent = len(members), layers[0], layers[-1], by_layer
            rows.append((number, *extent, coherence(units), self.lm.token_strings(ids), names))
        title = f"{self.n_clusters:,} clusters of {len(self.labels):,} values ({self.linkage} linkage, cosine)"
        return Table.of_rows(title, _SUMMARY, rows, self._provenance())

    def to_table(self) -> Table:
        """Return a table with one row for each value vector: layer, index, cluster."""
        columns = {"layer": self.memory[:, 0], "index": self.memory[:, 1], "cluster": self.labels}
        return Table(f"{self.n_clusters:,} clusters of {len(self.labels):,} values", columns, self._provenance())

    def _provenance(self) -> Provenance:
        notes = {"linkage": self.linkage, "n_clusters": self.n_clusters}
        return self.lm.provenance(basis=basis_or_default(self.lm, None, "raw"), notes=notes)


def _carried_centre(
    lm: Decoder, members: Sequence[tuple[int, int]], units: Float[Tensor, "member d"]
) -> Float[Tensor, " d"]:
    """Return the mean of unit vectors, each mapped from its layer to the final stream by the model's fitted lens."""
    at, total = torch.tensor([layer for layer, _ in members]), torch.zeros_like(units[0])
    for layer in at.unique().tolist():
        total += carried_parts(lm, units[(at == layer).to(units.device)].sum(dim=0, keepdim=True), layer)[0]
    return total / len(members)


def coherence(units: Float[Tensor, "member d"]) -> float | None:
    """Return the mean cosine similarity over all pairs of different members; None if there is only one member."""
    m = len(units)
    if m < 2:
        return None
    lengths = units.double().norm(dim=1).square().sum()
    return float((units.double().sum(dim=0).norm().square() - lengths) / (m * (m - 1)))


@torch.no_grad()
def cluster_values(
    lm: Decoder,
    n_clusters: int = 10_000,
    *,
    layers: Sequence[int] | None = None,
    linkage: str = "average",
    signs: Sequence[Float[Tensor, " _"]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ValueClusters:
    """Group all value vectors of a model into clusters of similar directions.

    Args:
        n_clusters: how many clusters to cut the tree into; the papers use 10,000, 200 and, in LM-Debugger, 3,000.
        layers: the layers whose value vectors are clustered; all when None.
        linkage: "average", or "complete" for small models.
        signs: one factor (1 or -1) for each value vector, in a tensor for each layer of the model, because the sign of
            a gated memory's value vector is a convention: see `unembed.memories.value_signs`. No factors when None.
        progress: called with the number of steps done and their total; an exception that it raises ends the work.

    Raises:
        OutOfRange: more clusters than values, or no such layer.
        Unsupported: the model has no memories, or too many values for complete linkage.

    Memory: two copies of the values in float32, and what `unembed.memories.clustering.average_linkage` states.
    """
    lm = require_decoder(lm)
    if not lm.memory_layers:
        lm.feed_forward(0)  # raises an error that gives the reason
    chosen = tuple(lm.layer(layer) for layer in (lm.memory_layers if layers is None else as_tuple("layers", layers)))
    if not chosen:
        raise InvalidInput("clusters of an empty list of layers", instead="Name at least one layer")
    n_clusters = as_int("n_clusters", n_clusters)
    values = [written_values(lm, layer).float() for layer in chosen]
    memory = np.concatenate(
        [np.column_stack([np.full(len(v), layer), np.arange(len(v))]) for layer, v in zip(chosen, values, strict=True)]
    )
    if not 1 <= n_clusters <= len(memory):
        raise OutOfRange(
            f"{n_clusters} clusters",
            why=f"{lm.name} has {len(memory)} value vectors in these layers",
            instead=f"Ask for 1 to {len(memory)}, for example {max(1, len(memory) // 10)}",
        )
    every = None if signs is None else torch.cat([signs[layer].to(values[0]) for layer in chosen])
    vectors = torch.cat(values) if every is None else torch.cat(values) * every[:, None]
    tree = dendrogram(vectors, linkage, progress=progress)
    labels = tree.cut(n_clusters)
    return ValueClusters(lm, chosen, tree, memory, labels, linkage, None if every is None else every.cpu().numpy())

"""A two-dimensional map of all value vectors, in which each cluster of similar directions is an island.

Spherical k-means groups the value vectors. t-SNE places the mean direction of each cluster (van der Maaten & Hinton
2008, equations 2, 4, 11 and 12, on squared distances of directions, 2 - 2 cos), and islands that overlap are pushed
apart. The value vectors closest to an island's mean direction are placed in its middle. The others are placed around
them, each on the side that faces the islands whose mean directions it resembles most. As in every t-SNE map, only
neighbourhoods mean something, not distances.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int
from torch import Tensor

from unembed.errors import Unsupported
from unembed.memories.clustering.unit_vectors import unit_rows
from unembed.memories.values import memories_at, values_of
from unembed.models.decoder import Decoder, require_decoder
from unembed.results import Displayed, Provenance, Table
from unembed.validation import as_int, positive_int

MAX_POINTS = 50_000
"""Largest number of value vectors on a map; if there are more, evenly spaced ones are chosen."""
_SPACING = 1.0
"""The distance between neighbouring value vectors of an island, before coordinates are scaled to 0 to 1."""
_ROUNDS, _STEPS, _PUSHES = 15, 400, 300
_CHUNK = 4096


@dataclass(frozen=True, eq=False, repr=False)
class ValueMap(Displayed):
    """A map of value vectors: for each vector on it, its position and its cluster."""

    memory: Int[np.ndarray, "point 2"]
    """Layer and index of each value vector on the map."""
    position: Float32[np.ndarray, "point 2"]
    """x and y, 0 to 1."""
    cluster: Int[np.ndarray, " point"]
    cosine: Float32[np.ndarray, " point"]
    """Cosine of each value vector with the mean direction of its cluster."""
    centre: Float32[np.ndarray, "cluster 2"]
    radius: Float32[np.ndarray, " cluster"]
    n_values: int
    """Number of value vectors of the model, including those that are not on the map."""
    provenance: Provenance

    def to_table(self) -> Table:
        """Return one row for each point: layer, index, x, y, cluster, cosine with the cluster's mean direction."""
        columns = {
            "layer": self.memory[:, 0].tolist(),
            "index": self.memory[:, 1].tolist(),
            "x": self.position[:, 0].tolist(),
            "y": self.position[:, 1].tolist(),
            "cluster": self.cluster.tolist(),
            "cosine": self.cosine.tolist(),
        }
        return Table("Map of the values", columns, self.provenance)


@torch.no_grad()
def value_map(
    lm: Decoder,
    max_points: int = MAX_POINTS,
    *,
    also: Sequence[tuple[int, int]] = (),
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> ValueMap:
    """Compute the map of a model's value vectors. The same model and seed give the same map.

    Args:
        max_points: largest number of value vectors to show; if the model has more, evenly spaced ones over all layers.
        also: layer and index of memories (FFN neurons) to show in addition.
        seed: the seed of the initial means of k-means.
        progress: called with the number of steps done and their total; an exception that it raises ends the work.

    Raises:
        InvalidInput: a value holds NaN or infinity.
        Unsupported: the model has no memories.

    Memory: the value vectors on the map in float32, and a matrix of 4,096 by the number of clusters.
    """
    lm = require_decoder(lm)
    shown = positive_int("max_points", max_points)
    total = lm.n_memories
    if not total:
        raise Unsupported(f"{lm.name} has no value vectors to map", why="no layer has memories (FFN neurons)")
    rows = np.unique(np.linspace(0, total - 1, min(total, shown)).round().astype(np.int64))
    starts = np.cumsum([0, *(lm.n_memories_of(layer) for layer in range(lm.n_layers))])
    rows = np.union1d(rows, np.array([starts[layer] + index for layer, index in also], dtype=np.int64))
    memory = memories_at(lm, torch.from_numpy(rows)).numpy()
    units = unit_rows(values_of(lm, memory).float().cpu())
    report = progress or (lambda _done, _of: None)
    n_clusters = int(np.clip(round((len(rows) / 2) ** 0.5), 1, 160))
    means, cluster = _grouped(units, n_clusters, as_int("seed", seed), lambda done: report(done, _ROUNDS + 2))
    centre, radius = _islands(means.double().numpy(), np.bincount(cluster, minlength=len(means)))
    report(_ROUNDS + 1, _ROUNDS + 2)
    position, cosine = _members(units, means, cluster, centre)
    low, high = (centre - radius[:, None]).min(axis=0), (centre + radius[:, None]).max(axis=0)
    scale = float((high - low).max())
    offset = (low + high) / 2 - scale / 2
    report(_ROUNDS + 2, _ROUNDS + 2)
    return ValueMap(
        memory,
        ((position - offset) / scale).astype(np.float32),
        cluster,
        cosine,
        ((centre - offset) / scale).astype(np.float32),
        (radius / scale).astype(np.float32),
        total,
        lm.provenance(seed=seed, notes={"values": total, "shown": len(rows), "clusters": len(means)}),
    )


def _nearest(units: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each vector, its largest cosine with a mean direction, and the number of that direction."""
    found = [(block @ means.T).max(dim=1) for block in units.split(_CHUNK)]
    return torch.cat([one.values for one in found]), torch.cat([one.indices for one in found])


def _grouped(
    units: Tensor, n: int, seed: int, report: Callable[[int], None]
) -> tuple[Tensor, Int[np.ndarray, " point"]]:
    """Group unit vectors by spherical k-means; return the mean directions, and the cluster of every vector.

    The initial means are those of k-means++ (Arthur & Vassilvitskii 2007).
    """
    generator = np.random.default_rng(seed)
    means = units[[int(generator.integers(len(units)))]]
    best = units @ means[0]
    while len(means) < n:
        weights = (1 - best.double()).clamp_min(0).numpy()
        if weights.sum() <= 1e-9:
            break  # every vector has the same direction as one of the means
        chosen = int(generator.choice(len(units), p=weights / weights.sum()))
        means = torch.cat([means, units[[chosen]]])
        best = torch.maximum(best, units @ units[chosen])
    cluster = torch.full((len(units),), -1)
    for step in range(_ROUNDS):
        report(step)
        cosine, nearest = _nearest(units, means)
        if torch.equal(nearest, cluster):
            break
        cluster = nearest
        sums = torch.zeros_like(means).index_add_(0, cluster, units)
        empty = torch.bincount(cluster, minlength=len(means)) == 0
        # Each empty cluster gets a new mean: one of the vectors that are farthest from the mean of their cluster.
        sums[empty] = units[cosine.argsort()[: int(empty.sum())]]
        means = unit_rows(sums)
    _, cluster = _nearest(units, means)
    used, cluster = cluster.unique(return_inverse=True)
    return means[used], cluster.numpy()


def _islands(
    means: Float64[np.ndarray, "cluster d"], sizes: Int[np.ndarray, " cluster"]
) -> tuple[Float64[np.ndarray, "cluster 2"], Float64[np.ndarray, " cluster"]]:
    """Return centres and radii of islands that do not overlap; islands with similar directions are neighbours."""
    # The smallest number of rings in which every member has a place: a centre and r rings around it have
    # 1 + 3 r (r + 1) places.
    rings = np.ceil((np.sqrt(np.maximum(0, (sizes - 1) / 3 * 4 + 1)) - 1) / 2)
    radius = (rings + 0.9) * _SPACING
    place = _tsne(2 - 2 * np.clip(means @ means.T, -1, 1))
    spread = np.abs(place - place.mean(axis=0)).max() or 1.0
    place = (place - place.mean(axis=0)) / spread * np.sqrt((radius**2).sum()) * 1.6
    room = radius[:, None] + radius + 1.5 * _SPACING
    for step in range(4 * _PUSHES):
        away = place[:, None] - place
        length = np.sqrt((away**2).sum(axis=-1)) + np.eye(len(place))
        overlap = np.maximum(0, room - length) * (1 - np.eye(len(place)))
        if step >= _PUSHES and not (overlap > 1e-3).any():
            break
        # Two islands (clusters on the map) at exactly the same position have no direction in which to move apart. They
        # are pushed apart diagonally; their numbers decide which one moves which way.
        away += (length < 1e-9)[:, :, None] * np.sign(np.subtract.outer(np.arange(len(place)), np.arange(len(place))))[
            :, :, None
        ]
        place = place + 0.5 * (away / np.maximum(length, 1e-9)[:, :, None] * overlap[:, :, None]).sum(axis=1)
        if step < _PUSHES:
            place = place * 0.997  # in the first steps, also move all islands a little closer together
    return place, radius


def _tsne(squared: Float64[np.ndarray, "n n"]) -> Float64[np.ndarray, "n 2"]:
    """Compute an exact t-SNE of points with these squared distances; it starts from two principal components."""
    n = len(squared)
    if n < 4:
        return np.column_stack([np.arange(n, dtype=float), np.zeros(n)])
    centred = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-0.5 * centred @ squared @ centred)
    start = vectors[:, [-1, -2]] * np.sqrt(np.maximum(values[[-1, -2]], 1e-12))
    start *= np.where(start[np.abs(start).argmax(axis=0), [0, 1]] < 0, -1, 1)  # the sign of an eigenvector is arbitrary
    near = _joint(squared, perplexity=min(10.0, (n - 1) / 3))
    place, speed = start / max(start[:, 0].std(), 1e-12) * 1e-2, np.zeros((n, 2))
    for step in range(_STEPS):
        away = place[:, None] - place
        kernel = 1 / (1 + (away**2).sum(axis=-1))
        np.fill_diagonal(kernel, 0)
        early = step < _STEPS // 4
        pull = ((12 if early else 1) * near - kernel / kernel.sum()) * kernel
        gradient = 4 * (pull[:, :, None] * away).sum(axis=1)
        speed = (0.5 if early else 0.8) * speed - max(n / 12, 5.0) * gradient
        place = place + speed
    return place


def _joint(squared: Float64[np.ndarray, "n n"], perplexity: float) -> Float64[np.ndarray, "n n"]:
    """Return t-SNE's joint probabilities; before they are made symmetric, each row has the given perplexity."""
    n = len(squared)
    low, high = np.full(n, 1e-6), np.full(n, 1e9)
    for _ in range(80):
        precision = np.sqrt(low * high)
        logits = -squared * precision[:, None]
        np.fill_diagonal(logits, -np.inf)
        found = np.exp(logits - logits.max(axis=1, keepdims=True))
        found /= found.sum(axis=1, keepdims=True)
        entropy = -(found * np.log(np.maximum(found, 1e-300))).sum(axis=1)
        wide = entropy > np.log(perplexity)
        low, high = np.where(wide, precision, low), np.where(wide, high, precision)
    return (found + found.T) / (2 * n)


def _members(
    units: Tensor, means: Tensor, cluster: Int[np.ndarray, " point"], centre: Float64[np.ndarray, "cluster 2"]
) -> tuple[Float64[np.ndarray, "point 2"], Float32[np.ndarray, " point"]]:
    """Place every value vector in a ring around its island's centre; also return its cosine with the mean direction."""
    place, cosine = np.empty((len(units), 2)), np.empty(len(units), dtype=np.float32)
    for number, middle in enumerate(centre):
        rows = np.flatnonzero(cluster == number)
        cosines = (units[rows] @ means.T).double().numpy()
        cosine[rows] = cosines[:, number]
        others = np.exp(12 * (cosines - cosines.max(axis=1, keepdims=True)))
        others[:, number] = 0
        toward = others @ (centre - middle) / np.maximum(others.sum(axis=1, keepdims=True), 1e-300)
        wanted = np.arctan2(toward[:, 1], toward[:, 0])
        order = np.argsort(-cosines[:, number], kind="stable")
        done = ring = 0
        while done < len(order):
            count = min(6 * ring or 1, len(order) - done)
            here = order[done : done + count]
            here = here[np.argsort(wanted[here], kind="stable")]
            angles = np.arange(count) * 2 * np.pi / count
            turn = np.angle(np.exp(1j * (wanted[here] - angles)).mean())
            around = np.column_stack([np.cos(angles + turn), np.sin(angles + turn)])
            place[rows[here]] = middle + around * ring * _SPACING
            done, ring = done + count, ring + 1
    return place, cosine

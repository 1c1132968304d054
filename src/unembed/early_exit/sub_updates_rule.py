"""The paper's rule: exit if the dominant sub-updates resemble those of examples that saturated at this layer.

Every value vector belongs to one of 200 clusters. A layer's update is represented by the list of the clusters of its
ten dominant sub-updates. S is the set of training examples that saturate at this layer, and N_x the set of those that
saturate at a later layer x. A token exits if its list is more similar to S than to every N_x, both by the largest and
by the mean similarity. Source: Geva et al. 2022, section 6.2.

The similarity of two lists is the number of positions at which they agree ("ordered", the released code) or the number
of clusters that both contain ("set", the paper's text). The paper leaves two cases open: here, no token exits if S is
empty, and an empty N_x is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.early_exit.example_prefixes import DOMINANT, Examples
from unembed.memories.clustering.value_clusters import cluster_values
from unembed.memories.sub_updates import contributions
from unembed.memories.value_signs import signs_by_weights
from unembed.models.decoder import Decoder
from unembed.validation import one_of

Similarity = Literal["ordered", "set"]
CLUSTERS = 200


class _Layer:
    """For one layer, an inverted index of the training examples that saturate at it or later.

    Each example has a list of keys, which stand for the clusters of its dominant sub-updates (`SubUpdates._keys`).
    Examples are sorted by saturation layer. The indices of those whose list contains key c are
    `lists[bounds[c]:bounds[c + 1]]`.
    """

    def __init__(self, keys: np.ndarray, saturation: np.ndarray, n_keys: int, layer: int) -> None:
        """Index the examples that saturate at `layer` or later; `keys` is (example, position), padded with -1."""
        order = np.argsort(saturation, kind="stable")
        order = order[saturation[order] >= layer]
        keys, groups = keys[order], saturation[order]
        self.n = len(order)
        self.starts = np.flatnonzero(np.r_[True, np.diff(groups) > 0]) if self.n else np.zeros(0, dtype=np.int64)
        self.sizes = np.diff(np.r_[self.starts, self.n])
        self.has_own = bool(self.n) and int(groups[0]) == layer
        examples, positions = np.nonzero(keys >= 0)
        flat = keys[examples, positions]
        by_key = np.argsort(flat, kind="stable")
        self.lists = examples[by_key].astype(np.int64)
        self.bounds = np.searchsorted(flat[by_key], np.arange(n_keys + 1))
        # A group is all examples that saturate at the same layer. The mean similarity of a list of keys to the lists of
        # a group depends only on how often each key occurs in the group, so only these numbers are stored.
        occurs = np.zeros((n_keys + 1, len(self.starts)))  # the last row is for positions without a key
        group_of = np.repeat(np.arange(len(self.starts)), self.sizes)
        np.add.at(occurs, (flat, group_of[examples]), 1)
        self.occurs = occurs

    def score(self, keys: np.ndarray) -> float:
        """Return how much more similar a list is to S than to the most similar N_x; if positive, the token exits.

        The docstring of this module defines S and N_x.

        It is the smaller of two differences: that of the largest similarities, and that of the mean similarities.
        """
        if not self.has_own:
            return -np.inf
        if len(self.starts) == 1:
            return np.inf
        hits = [self.lists[self.bounds[k] : self.bounds[k + 1]] for k in keys if k >= 0]
        counts = np.bincount(np.concatenate(hits), minlength=self.n) if hits else np.zeros(self.n, dtype=np.int64)
        largest = np.maximum.reduceat(counts, self.starts)
        mean = np.add.reduceat(counts, self.starts) / self.sizes
        return float(min(largest[0] - largest[1:].max(), mean[0] - mean[1:].max()))

    def is_above(self, threshold: float, keys: Int[np.ndarray, " position"]) -> bool:
        """Return whether the score is above a threshold.

        The score is at most the difference of the mean similarities, which is fast to compute. So this difference is
        compared with the threshold first; if it is not above, the score need not be computed.
        """
        if self.has_own and len(self.starts) > 1:
            own, *others = (self.occurs.take(keys, axis=0).sum(axis=0) / self.sizes).tolist()
            if own - max(others) <= threshold:
                return False
        return self.score(keys) > threshold


class SubUpdates:
    """The paper's rule as a score for each layer: it is above 0 where the paper's rule exits."""

    name = "sub_updates"
    points = ("coefficients",)

    def __init__(
        self,
        labels: Int[np.ndarray, "layer d_mlp"],
        train: Int[np.ndarray, "example layer k"],
        saturation: Int[np.ndarray, " example"],
        similarity: Similarity = "ordered",
    ) -> None:
        """Index the training examples.

        Args:
            labels: the cluster of every value vector.
            train: the dominant memories (FFN neurons) of each training example in each layer.
            saturation: the saturation layer of each training example.
            similarity: "ordered" or "set".
        """
        one_of("similarity", similarity, ("ordered", "set"))
        self.labels, self.train, self.saturation, self.similarity = labels, train, saturation, similarity
        self._n_clusters = int(labels.max()) + 1
        self._offsets = self._n_clusters * np.arange(train.shape[2])
        n_keys = self._n_clusters * (train.shape[2] if similarity == "ordered" else 1)
        self._layers = [_Layer(self._keys(n, train[:, n]), saturation, n_keys, n) for n in range(train.shape[1] - 1)]
        self._norms: dict[int, Tensor] = {}

    @classmethod
    def fit(
        cls, lm: Decoder, found: Examples, *, clusters: int = CLUSTERS, similarity: Similarity = "ordered"
    ) -> SubUpdates:
        """Cluster the value vectors of all layers, and index the examples."""
        labels = value_clusters(lm, clusters)
        return cls(labels, found.dominant.numpy(), found.saturation.numpy(), similarity)

    def _keys(self, layer: int, dominant: np.ndarray) -> np.ndarray:
        """Return the keys of the dominant memories, which are compared between examples.

        For "ordered", a key encodes a position in the list and a cluster. For "set", a key is a cluster; if a cluster
        occurs again, its key is -1.
        """
        clusters = self.labels[layer].take(dominant)
        if self.similarity == "ordered":
            return clusters + self._offsets
        ordered = np.sort(clusters, axis=-1)
        repeated = np.zeros_like(ordered, dtype=bool)
        repeated[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
        return np.where(repeated, -1, ordered)

    def scores(self, found: Examples) -> Float[np.ndarray, "example layer"]:
        """Return the score of every example at every layer but the last."""
        columns = []
        for n, layer in enumerate(self._layers):
            keys = self._keys(n, found.dominant[:, n].numpy())
            columns.append([layer.score(row) for row in keys])
        return np.array(columns, dtype=float).T

    def is_above(self, threshold: float, lm: Decoder, layer: int, seen: Mapping[str, Tensor]) -> bool:
        """Return whether the score of the current token is above a threshold."""
        m = seen["coefficients"]
        if layer not in self._norms:
            self._norms[layer] = contributions(torch.ones_like(m), lm.weights.W_out[layer])
        dominant = (m.abs() * self._norms[layer]).topk(min(DOMINANT, m.shape[-1])).indices
        # With arrays of only about ten elements, NumPy is three times as fast as torch.
        return self._layers[layer].is_above(threshold, self._keys(layer, dominant.numpy(force=True)))

    def state(self) -> dict[str, Any]:
        """Return the arrays to save."""
        return {
            "labels": self.labels.astype(np.int32),
            "train": self.train.astype(np.int32),
            "saturation": self.saturation.astype(np.int32),
            "similarity": np.array(self.similarity),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SubUpdates:
        """Build the rule that `state` described."""
        arrays = [state[name].astype(np.int64) for name in ("labels", "train", "saturation")]
        return cls(arrays[0], arrays[1], arrays[2], str(state["similarity"]))  # type: ignore[arg-type]


def value_clusters(lm: Decoder, n_clusters: int = CLUSTERS) -> Int[np.ndarray, "layer d_mlp"]:
    """Return the cluster of every value vector, by layer and index; rows of narrower layers are padded with -1.

    The sign of a gated memory's value vector is a convention; here each is given the sign with which it points along
    the memory's gate vector.

    Raises:
        OutOfRange: there are fewer value vectors than clusters.
        Unsupported: the model has no memories.
    """
    signs = [signs_by_weights(lm, n) for n in range(lm.n_layers)] if any(map(lm.is_signed, lm.memory_layers)) else None
    return cluster_values(lm, n_clusters, signs=signs).by_layer

"""The triggers of every key: the prefixes of the corpus on which its coefficient is largest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from unembed.corpus import Batch
from unembed.index import Index
from unembed.models.decoder import Decoder
from unembed.models.structure.experts import RoutedCoefficients
from unembed.names import Pole
from unembed.sweeps import Reducer, TopTriggers, Triggers


class OncePerSentence(TopTriggers):
    """A reducer that selects triggers as the released code does: at most one of each sentence, never at its last token.

    The base class allows at most one trigger for each document, so each sentence is passed to it as a document. The
    last position of every segment is left out, because no token follows it.
    """

    _changed: tuple[Batch, Batch] | None = None

    def __init__(self, top: int) -> None:
        super().__init__(top, per_document=1)

    def _as_documents(self, batch: Batch) -> Batch:
        if self._changed is None or self._changed[0] is not batch:
            shorter = (batch.lengths - 1).clamp_min(0)
            self._changed = (batch, replace(batch, documents=batch.segments, lengths=shorter))
        return self._changed[1]

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:
        """Update the lists of the largest coefficients of a layer."""
        super().see(point, layer, tensor, self._as_documents(batch))

    def see_routed(self, layer: int, routed: RoutedCoefficients, batch: Batch) -> None:
        """Update the lists of the largest coefficients of a mixture-of-experts layer."""
        super().see_routed(layer, routed, self._as_documents(batch))

    def update(self, batch: Batch) -> None:
        """Count the token positions of the batch."""
        super().update(self._as_documents(batch))
        self._changed = None


def reducer(how: str, top: int) -> Reducer:
    """Return the reducer that selects `top` triggers for each key; see `Options.triggers` for `how`."""
    return OncePerSentence(top) if how == "sentences" else TopTriggers(top, min_prefix=1)


@dataclass(frozen=True, eq=False)
class KeyTriggers:
    """The triggers of every key, largest coefficient first. The rows (keys) of all layers are concatenated.

    In an ungated layer each memory (FFN neuron) is one key. In a gated layer each memory is two keys, one for positive
    and one for negative coefficients: the sign is only a convention, because negating the up-projection and the value
    vector of a memory leaves the model unchanged. A layer of n gated memories thus has 2 n keys. Keys 0 to n - 1 have
    the sign at which each memory reaches its largest |coefficient|; keys n to 2 n - 1 have the other sign.
    """

    coefficients: Float[np.ndarray, "key top"]
    """The coefficient at each trigger. Missing triggers have -inf, or inf for keys of negative coefficients."""
    positions: Int[np.ndarray, "key top"]
    """The token position of each trigger in the corpus; -1 for missing triggers."""
    bounds: Int[np.ndarray, " layers_and_one"]
    """The keys of layer l are rows bounds[l] to bounds[l + 1]."""
    sign: Int[np.ndarray, " key"]
    """The sign of the key's coefficients: 1 or -1."""
    signed: Bool[np.ndarray, " layer"]
    """Whether a layer has two keys for each memory, because it is gated."""

    @classmethod
    def _joined(cls, layers: Sequence[_Layer]) -> KeyTriggers:
        return cls(
            np.concatenate([layer.coefficients for layer in layers]),
            np.concatenate([layer.positions for layer in layers]),
            np.concatenate([[0], np.cumsum([len(layer.sign) for layer in layers])]),
            np.concatenate([layer.sign for layer in layers]),
            np.array([layer.signed for layer in layers]),
        )

    @classmethod
    def of_sweep(cls, lists: Triggers) -> KeyTriggers:
        """Return the triggers that a pass over the corpus found; gated layers have lists for both signs."""
        nothing = (np.zeros(0),) * len(lists.values)
        negative = lists.negative_values or nothing, lists.negative_positions or nothing
        layers = zip(lists.values, lists.positions, *negative, strict=True)
        return cls._joined([_both_signs(*map(np.asarray, layer)) for layer in layers])

    @classmethod
    def of_index(cls, index: Index, lm: Decoder, top: int) -> KeyTriggers:
        """Return the triggers in an index: `top` for each key, or fewer if the index has fewer."""
        poles = [[np.asarray(array[:, :top]) for array in index.pole(pole)] for pole in index.poles]
        bounds = np.concatenate([[0], np.cumsum(index.manifest.layers)])
        nothing = np.zeros((0, top))
        layers = []
        for n, (start, stop) in enumerate(pairwise(bounds.tolist())):
            (values, places), *others = [(v[start:stop], p[start:stop]) for v, p in poles]
            lower = others[0] if others and lm.is_signed(n) else (nothing, nothing)
            layers.append(_both_signs(values, places, *lower))
        return cls._joined(layers)

    @property
    def top(self) -> int:
        """The largest number of triggers for a key."""
        return self.positions.shape[1]

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return len(self.bounds) - 1

    @property
    def n_memories(self) -> int:
        """The mean number of memories in a layer (a gated memory counts once, although it is two keys)."""
        return int((np.diff(self.bounds) // np.where(self.signed, 2, 1)).mean())

    def without(self, positions: Int[np.ndarray, " position"]) -> KeyTriggers:
        """Return the triggers except those at the given positions; some keys then have fewer triggers."""
        left = (self.positions >= 0) & ~np.isin(self.positions, positions)
        order = np.argsort(~left, axis=1, kind="stable")
        left, at, sizes = (np.take_along_axis(a, order, axis=1) for a in (left, self.positions, self.coefficients))
        missing = np.where(self.sign < 0, np.inf, -np.inf).astype(sizes.dtype)[:, None]
        return replace(self, positions=np.where(left, at, -1), coefficients=np.where(left, sizes, missing))

    def layer(self, layer: int) -> slice:
        """Return the slice of the rows that belong to a layer."""
        return slice(int(self.bounds[layer]), int(self.bounds[layer + 1]))

    def row(self, layer: int, key: int) -> int:
        """Return the row, in the arrays of all layers, of a key given by layer and key number."""
        return int(self.bounds[layer]) + key

    def memory(self, layer: int, key: int) -> tuple[int, Pole]:
        """Return the index of a key's memory in the layer, and the sign of the key: "positive" or "negative"."""
        keys = int(self.bounds[layer + 1] - self.bounds[layer])
        index = key % (keys // 2) if self.signed[layer] else key
        return index, "negative" if self.sign[self.row(layer, key)] < 0 else "positive"

    def key(self, layer: int, index: int, pole: Pole = "positive") -> int:
        """Return the key number, in its layer, of a memory at the sign `pole`, which is ignored in ungated layers."""
        if not self.signed[layer]:
            return index
        first = self.memory(layer, index)[1] == pole
        return index if first else index + int(self.bounds[layer + 1] - self.bounds[layer]) // 2

    def sampled(self, per_layer: int, least: int, seed: int, name: str) -> list[tuple[int, int]]:
        """Draw `per_layer` random keys of every layer (or all, if there are fewer) among those with `least` triggers.

        Args:
            name: what the sample is for; it is part of the random seed, so that samples for different purposes differ.

        Returns:
            Layer and key number of each.
        """
        chosen = []
        for layer in range(self.n_layers):
            able = np.flatnonzero((self.positions[self.layer(layer)] >= 0).sum(axis=1) >= least)
            random = np.random.default_rng([seed, layer, *name.encode()])
            drawn = random.choice(able, min(per_layer, len(able)), replace=False) if len(able) else able
            chosen += [(layer, int(i)) for i in np.sort(drawn)]
        return chosen


class _Layer(NamedTuple):
    """The keys of one layer."""

    coefficients: Float[np.ndarray, "key top"]
    positions: Int[np.ndarray, "key top"]
    sign: Int[np.ndarray, " key"]
    signed: bool


def _both_signs(
    values: Float[np.ndarray, "memory top"],
    positions: Int[np.ndarray, "memory top"],
    negative_values: Shaped[np.ndarray, "..."],
    negative_positions: Shaped[np.ndarray, "..."],
) -> _Layer:
    """Return the keys of a layer; if it is gated, first those with each memory's stronger sign, then the others."""
    values, positions = values.astype(np.float32), positions.astype(np.int64)
    if not len(negative_values):
        return _Layer(values, positions, np.ones(len(values), np.int64), signed=False)
    negative_values, negative_positions = negative_values.astype(np.float32), negative_positions.astype(np.int64)
    # If a memory has no trigger at one sign, the array has an infinite coefficient in its place. The size is set to -1
    # in this case, so that the other sign counts as the stronger one.
    sizes = [
        np.where(p[:, 0] >= 0, np.abs(v[:, 0]), -1.0)
        for v, p in ((values, positions), (negative_values, negative_positions))
    ]
    flipped = (sizes[1] > sizes[0])[:, None]
    pairs = (values, negative_values), (positions, negative_positions)
    first, second = (
        [np.where(flipped, low, high) for high, low in pairs],
        [np.where(flipped, high, low) for high, low in pairs],
    )
    sign = np.where(flipped[:, 0], -1, 1)
    return _Layer(
        np.concatenate([first[0], second[0]]),
        np.concatenate([first[1], second[1]]),
        np.concatenate([sign, -sign]),
        signed=True,
    )

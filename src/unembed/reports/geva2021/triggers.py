"""The trigger examples of every key, from a sweep or from an index, with the tokens that follow them."""

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

Lists = tuple[Tensor, Tensor] | tuple[list[float], list[int]]


class OncePerSentence(TopTriggers):
    """Triggers as the released code selects them: one prefix of each sentence, and never its last one.

    A sentence is treated as a document, so that the limit of one trigger for each document applies to it. The last
    position of every segment is left out, because nothing follows it.
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
        """Offer the coefficients of a layer to its lists."""
        super().see(point, layer, tensor, self._as_documents(batch))

    def see_routed(self, layer: int, routed: RoutedCoefficients, batch: Batch) -> None:
        """Offer the coefficients of a layer of experts to its lists."""
        super().see_routed(layer, routed, self._as_documents(batch))

    def update(self, batch: Batch) -> None:
        """Count the positions."""
        super().update(self._as_documents(batch))
        self._changed = None


def reducer(how: str, top: int) -> Reducer:
    """Return a reducer that selects triggers: "prefixes" as in the paper's text, "sentences" as in its code."""
    return OncePerSentence(top) if how == "sentences" else TopTriggers(top, min_prefix=1)


@dataclass(frozen=True, eq=False)
class KeyTriggers:
    """The triggers of every key, best first; the keys of all layers follow one another.

    The coefficient of a gated memory has either sign, and which of them is the positive one is a convention: negating
    its up-projection and its value leaves the model as it is. Such a memory is therefore two keys, one for each sign,
    and a layer of n gated memories has 2 n: first the sign at which each reaches its largest coefficient, then the
    other. Neither the numbers nor their order depend on the convention.
    """

    coefficients: Float[np.ndarray, "key top"]
    """-inf where a key has fewer (inf at negative coefficients)."""
    positions: Int[np.ndarray, "key top"]
    """Places on the corpus axis, -1 where a key has fewer."""
    bounds: Int[np.ndarray, " layers_and_one"]
    """The keys of layer l are rows bounds[l] to bounds[l + 1]."""
    sign: Int[np.ndarray, " key"]
    """Of the key's coefficients: 1 or -1."""
    signed: Bool[np.ndarray, " layer"]
    """Whether a layer has two keys for each memory."""

    @classmethod
    def of_lists(
        cls, values: Sequence[Tensor], positions: Sequence[Tensor], negative: Sequence[Lists] | None = None
    ) -> KeyTriggers:
        """Build it from the lists of a sweep, one tensor for each layer.

        Args:
            negative: coefficients and positions of the negative sign; empty for layers whose coefficients have none.
        """
        lower: Sequence[Lists] = negative or [([], [])] * len(values)
        layers = [
            _both_signs(v.float().numpy(), p.numpy(), *map(np.asarray, other))
            for v, p, other in zip(values, positions, lower, strict=True)
        ]
        return cls._joined(layers)

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
        """Build it from a sweep, which lists both signs where a layer's coefficients have them."""
        if lists.negative_values is None or lists.negative_positions is None:
            return cls.of_lists(lists.values, lists.positions)
        negative = list(zip(lists.negative_values, lists.negative_positions, strict=True))
        return cls.of_lists(lists.values, lists.positions, negative)

    @classmethod
    def of_index(cls, index: Index, lm: Decoder, top: int) -> KeyTriggers:
        """Build it from an index, which may have fewer triggers for each key than requested."""
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
        """The number of triggers for each key."""
        return self.positions.shape[1]

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return len(self.bounds) - 1

    @property
    def n_memories(self) -> int:
        """The mean number of memories of a layer; a memory with two signs counts once."""
        return int((np.diff(self.bounds) // np.where(self.signed, 2, 1)).mean())

    def row(self, layer: int, key: int) -> int:
        """Return the row of a layer's key."""
        return int(self.bounds[layer]) + key

    def memory(self, layer: int, key: int) -> tuple[int, Pole]:
        """Return the index of a key's memory, and the pole at which the key is read."""
        keys = int(self.bounds[layer + 1] - self.bounds[layer])
        index = key % (keys // 2) if self.signed[layer] else key
        return index, "negative" if self.sign[self.row(layer, key)] < 0 else "positive"

    def key(self, layer: int, index: int, pole: Pole = "positive") -> int:
        """Return the number of the key of a memory at one sign of its coefficient."""
        if not self.signed[layer]:
            return index
        first = self.memory(layer, index)[1] == pole
        return index if first else index + int(self.bounds[layer + 1] - self.bounds[layer]) // 2

    def sampled(self, per_layer: int, least: int, seed: int, name: str) -> list[tuple[int, int]]:
        """Draw random keys of every layer with at least `least` triggers; fewer if a layer does not have enough.

        Returns:
            Layer and number of the key in it.
        """
        chosen = []
        for layer in range(self.n_layers):
            rows = slice(int(self.bounds[layer]), int(self.bounds[layer + 1]))
            able = np.flatnonzero((self.positions[rows] >= 0).sum(axis=1) >= least)
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
    """Return the keys of a layer, the stronger sign of every memory first if it has two."""
    values, positions = values.astype(np.float32), positions.astype(np.int64)
    if not len(negative_values):
        return _Layer(values, positions, np.ones(len(values), np.int64), signed=False)
    negative_values, negative_positions = negative_values.astype(np.float32), negative_positions.astype(np.int64)
    # A memory without a trigger of one sign has an infinite coefficient there, which counts as the smaller one.
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

"""The trigger examples of every key, from a sweep or from an index, with the tokens that follow them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from unembed.corpus import Batch
from unembed.index import Index
from unembed.models.structure.experts import RoutedCoefficients
from unembed.names import Pole
from unembed.sweeps import Reducer, TopTriggers, Triggers


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

    At the negative pole the best is the one with the most negative coefficient.
    """

    coefficients: Float[np.ndarray, "key top"]
    """-inf where a key has fewer (inf at the negative pole)."""
    positions: Int[np.ndarray, "key top"]
    """Places on the corpus axis, -1 where a key has fewer."""
    bounds: Int[np.ndarray, " layers_and_one"]
    """The keys of layer l are rows bounds[l] to bounds[l + 1]."""

    @classmethod
    def of_lists(cls, values: Sequence[Tensor], positions: Sequence[Tensor]) -> KeyTriggers:
        """Build it from the lists of a sweep, one tensor for each layer."""
        return cls(
            np.concatenate([v.float().numpy() for v in values]),
            np.concatenate([p.numpy() for p in positions]),
            np.concatenate([[0], np.cumsum([len(v) for v in values])]),
        )

    @classmethod
    def of_sweep(cls, lists: Triggers) -> tuple[KeyTriggers, KeyTriggers | None]:
        """Return both poles of a sweep.

        The negative one is None if no coefficient is signed, and empty in unsigned layers.
        """
        positive = cls.of_lists(lists.values, lists.positions)
        if lists.negative_values is None or lists.negative_positions is None:
            return positive, None
        negative = cls(
            np.full_like(positive.coefficients, np.inf), np.full_like(positive.positions, -1), positive.bounds
        )
        for n, (values, positions) in enumerate(zip(lists.negative_values, lists.negative_positions, strict=True)):
            if len(values):
                rows = slice(int(positive.bounds[n]), int(positive.bounds[n + 1]))
                negative.coefficients[rows], negative.positions[rows] = values.float().numpy(), positions.numpy()
        return positive, negative

    @classmethod
    def of_index(cls, index: Index, top: int, pole: Pole = "positive") -> KeyTriggers:
        """Build it from an index, which may have fewer triggers for each key than requested."""
        values, positions = index.pole(pole)
        bounds = np.concatenate([[0], np.cumsum(index.manifest.layers)])
        return cls(np.asarray(values[:, :top]), np.asarray(positions[:, :top]).astype(np.int64), bounds)

    @property
    def top(self) -> int:
        """The number of triggers for each key."""
        return self.positions.shape[1]

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return len(self.bounds) - 1

    def row(self, layer: int, index: int) -> int:
        """Return the row of a key."""
        return int(self.bounds[layer]) + index

    def sampled(self, per_layer: int, least: int, seed: int, name: str) -> list[tuple[int, int]]:
        """Draw random keys of every layer with at least `least` triggers; fewer if a layer does not have enough."""
        chosen = []
        for layer in range(self.n_layers):
            rows = slice(int(self.bounds[layer]), int(self.bounds[layer + 1]))
            able = np.flatnonzero((self.positions[rows] >= 0).sum(axis=1) >= least)
            random = np.random.default_rng([seed, layer, *name.encode()])
            drawn = random.choice(able, min(per_layer, len(able)), replace=False) if len(able) else able
            chosen += [(layer, int(i)) for i in np.sort(drawn)]
        return chosen

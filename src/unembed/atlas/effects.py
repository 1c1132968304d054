"""Measure how adding a value vector changes the logits at the ends of a few passages, compared with other vectors.

A value vector is multiplied by the sign of the coefficient, and scaled to a tenth of the norm of the residual stream.
It is added to the residual stream after its layer, at the last token of a passage, and the later layers are run
(`memories.value_effects`). The changes of the logits are divided by their standard deviation over the vocabulary, so
that all passages count alike, and averaged over the passages.

Any vector of that norm changes some logits, most of all in the first layers. A token's *rise* is therefore how far its
change exceeds the mean change that other value vectors of the layer cause, in standard deviations over these vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.jacobian.passes import cache_of
from unembed.memories.truth_of_values import value_effects
from unembed.memories.values import written_values
from unembed.models.decoder import Decoder

REFERENCE = 64
"""Number of memories (FFN neurons) drawn at random from each layer. Other value vectors of the layer are compared with
the value vectors of these memories and with their negatives."""
_LEAST_SPREAD = 0.05


class Effects(NamedTuple):
    """How the logits change when value vectors are added."""

    changes: Float[Tensor, "memory vocab"]
    """Changes of the logits, averaged over passages, in standard deviations over the vocabulary."""
    rises: Float[Tensor, "memory vocab"]
    """By how much each change exceeds the mean change that other value vectors of the layer cause, in standard
    deviations over these vectors."""


class ValueEffects:
    """Measures the effects of value vectors, layer by layer, at the ends of named groups of passages."""

    def __init__(self, lm: Decoder, passages: Mapping[str, Sequence[Int[Tensor, " pos"]]], seed: int) -> None:
        """Run the model on all but the last token of each passage once, and reuse the caches for all value vectors."""
        self._lm, self._passages, self._seed = lm, passages, seed
        self._caches = {part: [cache_of(lm, one[:-1]) for one in some] for part, some in passages.items()}
        self._usual: dict[str, tuple[Tensor, Tensor]] = {}
        self._layer: int | None = None

    def of(self, layer: int, vectors: Float[Tensor, "memory d_model"], part: str) -> Effects:
        """Measure the effects of value vectors of a layer at the passages of one group, `part`.

        Memory: three tensors of shape (vectors, d_vocab), where `vectors` is the larger of the number of given vectors
        and 2 * `REFERENCE`.
        """
        if layer != self._layer:
            self._usual, self._layer = {}, layer
        if part not in self._usual:
            changes = self._changes(layer, self._reference(layer), part)
            self._usual[part] = changes.mean(dim=0), changes.std(dim=0).clamp_min(_LEAST_SPREAD)
        changes = self._changes(layer, vectors, part)
        mean, spread = self._usual[part]
        return Effects(changes, (changes - mean) / spread)

    def _reference(self, layer: int) -> Float[Tensor, "memory d_model"]:
        generator = torch.Generator().manual_seed(self._seed * 10_007 + layer)
        drawn = torch.randperm(self._lm.n_memories_of(layer), generator=generator)[:REFERENCE]
        vectors = written_values(self._lm, layer, drawn.to(self._lm.device))
        return torch.cat([vectors, -vectors])

    def _changes(
        self, layer: int, vectors: Float[Tensor, "memory d_model"], part: str
    ) -> Float[Tensor, "memory vocab"]:
        total = torch.zeros(len(vectors), self._lm.d_vocab, device=self._lm.device)
        for passage, cache in zip(self._passages[part], self._caches[part], strict=True):
            change = value_effects(self._lm, vectors, layer, [passage], [cache])[:, : self._lm.d_vocab]
            total += change / change.std(dim=1, keepdim=True).clamp_min(1e-30)
        return total / len(self._passages[part])

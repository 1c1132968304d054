"""What adding value vectors does to the logits at the ends of a few passages, compared with other vectors of the layer.

A value vector, with the sign of the coefficient, is added to the stream after its layer at the last token of a passage,
at a tenth of the stream's length there, and the layers that follow are run (`memories.value_effects`). The changes of
the logits at a passage are divided by their standard deviation over the vocabulary, so that passages count alike, and
averaged. Any vector of that length moves some logits, most of all in the first layers. So a token's *rise* is how far
its change exceeds the mean change that the layer's other value vectors cause, in units of their standard deviation.
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
"""Memories (FFN neurons) of a layer, drawn at random: others are compared with their value vectors at both signs."""
_LEAST_SPREAD = 0.05


class Effects(NamedTuple):
    """What adding some value vectors does."""

    changes: Float[Tensor, "memory vocab"]
    """The mean changes of the logits, in standard deviations over the vocabulary."""
    rises: Float[Tensor, "memory vocab"]
    """How far they exceed those of the layer's other value vectors, in standard deviations over these vectors."""


class ValueEffects:
    """Adds value vectors of one layer after another at the ends of passages, which are divided into parts."""

    def __init__(self, lm: Decoder, passages: Mapping[str, Sequence[Int[Tensor, " pos"]]], seed: int) -> None:
        """Read the passages once: what precedes the last token is the same for all value vectors."""
        self._lm, self._passages, self._seed = lm, passages, seed
        self._caches = {part: [cache_of(lm, one[:-1]) for one in some] for part, some in passages.items()}
        self._usual: dict[str, tuple[Tensor, Tensor]] = {}
        self._layer: int | None = None

    def of(self, layer: int, vectors: Float[Tensor, "memory d_model"], part: str) -> Effects:
        """Measure the effects of value vectors of a layer at the passages of one part.

        Memory: three times the effects of the vectors, or of the reference vectors, on every token's logit.
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

"""What is wired to one memory (FFN neuron): heads and memories that write to its key, memories that read its value.

All from the weights ("virtual weights"): the product of what one part writes and what a later part reads, whatever the
text. HeadBasis "folded": through the gains and centring of the norms between them, without their scales.

Source: Elhage et al. 2021, "Virtual weights and the residual stream as a communication channel"; composition of a head
with a key as there in "Two layer attention-only transformers", with the key in the place of the later head's matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.composed_weights import require_ov
from unembed.attention.folded_weights import (
    at_least_float32,
    default_basis,
    reading_weights,
    without_channel_mean,
    writing_weights,
)
from unembed.attention.geometry import keys_of, values_of
from unembed.models.decoder import Decoder
from unembed.names import HeadBasis
from unembed.validation import positive_int


@dataclass(frozen=True)
class Connection:
    """A head or a memory, and how strongly it is wired to the memory."""

    layer: int
    index: int
    strength: float
    """Of a head: ||W_V W_O k|| / (||W_V W_O||_F ||k||), 0 to 1. Of a memory: the cosine of value and key."""


@dataclass(frozen=True)
class MemoryConnections:
    """What writes to a memory's key and what reads its value, the strongest first."""

    layer: int
    index: int
    basis: HeadBasis
    heads: list[Connection]
    """Heads that write to the key."""
    writers: list[Connection]
    """Earlier memories whose values point along the key (or, with a negative cosine, against it)."""
    readers: list[Connection]
    """Later memories whose keys point along the value."""
    chance_head: float
    """The strength that a random key direction would have on average, in the root mean square: 1 / sqrt(d_model)."""
    chance_memory: float
    """The absolute cosine that 1 % of random directions exceed."""


@torch.no_grad()
def memory_connections(
    lm: Decoder, layer: int, index: int, top: int = 6, basis: HeadBasis | None = None
) -> MemoryConnections:
    """The heads and memories wired most strongly to a memory's key, and the memories that read its value.

    A gated memory's key is its column of the gate.

    Args:
        lm: the model.
        layer: the layer.
        index: the memory.
        top: how many of each.
        basis: "folded" or "raw"; "folded" where the model has norms when None.

    Raises:
        OutOfRange: there is no such memory.
        Unsupported: the model has no memories.

    Memory: one layer's keys, folded.
    """
    layer, index = lm.memory(layer, index)
    top, basis = positive_int("top", top), basis or default_basis(lm)
    key = _unit(_key(lm, layer, index, basis))
    value = _unit(without_channel_mean(lm, values_of(lm, layer, basis)[index][None])[0])
    parallel = lm.structure.blocks[layer].parallel
    heads: list[Connection] = []
    for n in range(layer if parallel else layer + 1):
        heads += [Connection(n, h, s) for h, s in enumerate(_composition(lm, n, key, basis).tolist())]
    writers, readers = list[Connection](), list[Connection]()
    for n in range(lm.n_layers):
        if n == layer or not _has_memories(lm, n):
            continue
        if n < layer:
            rows = without_channel_mean(lm, at_least_float32(values_of(lm, n, basis)))
            writers += _strongest(n, rows @ key / rows.norm(dim=-1).clamp_min(1e-30), top)
        else:
            columns = at_least_float32(keys_of(lm, n, basis))
            readers += _strongest(n, value @ columns / columns.norm(dim=0).clamp_min(1e-30), top)
    return MemoryConnections(
        layer,
        index,
        basis,
        _sorted(heads, top),
        _sorted(writers, top),
        _sorted(readers, top),
        lm.d_model**-0.5,
        2.576 * lm.d_model**-0.5,
    )


def _key(lm: Decoder, layer: int, index: int, basis: HeadBasis) -> Float[Tensor, " d_model"]:
    return at_least_float32(keys_of(lm, layer, basis)[:, index])


def _unit(x: Float[Tensor, " d_model"]) -> Float[Tensor, " d_model"]:
    x = at_least_float32(x)
    return x / x.norm().clamp_min(1e-30)


def _composition(lm: Decoder, layer: int, key: Float[Tensor, " d_model"], basis: HeadBasis) -> Float[Tensor, " head"]:
    """||W_V W_O k|| / ||W_V W_O||_F for a key of length 1."""
    require_ov(lm, layer, basis)
    W_V = at_least_float32(reading_weights(lm, layer, "v", basis))
    W_O = without_channel_mean(lm, at_least_float32(writing_weights(lm, layer, basis)))
    along = (W_V @ (W_O @ key)[..., None])[..., 0].norm(dim=-1)
    # ||A B||_F^2 = tr(A'A BB'), both of size d_head.
    whole = ((W_V.mT @ W_V) * (W_O @ W_O.mT)).sum(dim=(1, 2)).clamp_min(1e-30).sqrt()
    return along / whole


def _has_memories(lm: Decoder, layer: int) -> bool:
    site = lm.structure.blocks[layer].feed_forward
    return site is not None and site.has_memories


def _strongest(layer: int, cosines: Float[Tensor, " d_mlp"], top: int) -> list[Connection]:
    best = cosines.abs().topk(min(top, len(cosines))).indices
    return [Connection(layer, i, s) for i, s in zip(best.tolist(), cosines[best].tolist(), strict=True)]


def _sorted(found: list[Connection], top: int) -> list[Connection]:
    return sorted(found, key=lambda one: -abs(one.strength))[:top]

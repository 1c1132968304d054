"""List the connections of one memory (FFN neuron): what writes along its key, and which memories read its value vector.

The three lists are sorted by the virtual weights that `weights_between` computes. They do not depend on any text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from unembed.attention.paths.weights_between import Part, VirtualWeight, readers_by_layer, writers_by_layer
from unembed.attention.weights.folded_weights import default_basis
from unembed.memories.values import Values
from unembed.models.decoder import Decoder
from unembed.names import HeadBasis
from unembed.validation import positive_int

_TOKENS = 8
"""Number of tokens listed for each memory."""


@dataclass(frozen=True)
class Connection:
    """A head or memory that is connected to a given memory, with the strength of the connection."""

    layer: int
    index: int
    strength: float
    """For a head: ||W_O k|| / (||W_O||_F ||k||), 0 to 1. For a memory: the cosine of value and key vector."""
    top_tokens: list[str] | None = None
    """The tokens that the memory's value vector promotes most; None for a head."""


@dataclass(frozen=True)
class MemoryConnections:
    """The heads and memories that write along a memory's key, and memories that read its value, strongest first."""

    layer: int
    index: int
    basis: HeadBasis
    heads: list[Connection]
    """Earlier heads that write along the key."""
    writers: list[Connection]
    """Earlier memories whose values point along the key (or, with a negative cosine, against it)."""
    readers: list[Connection]
    """Later memories whose keys point along the value."""
    chance_head: float
    """The root mean square of a head's strength for random key directions: 1 / sqrt(d_model)."""
    chance_memory: float
    """The absolute cosine that 1 % of random directions exceed."""
    missing: Mapping[str, str]
    """What could not be compared, by name (such as "mixer (Mamba) 2"), with the reason why it has no matrix."""


@torch.no_grad()
def memory_connections(
    lm: Decoder, layer: int, index: int, top: int = 6, basis: HeadBasis | None = None
) -> MemoryConnections:
    """Find the heads and memories that write most along a memory's key, and the memories that read its value most.

    A gated memory's key is its column of the gate.

    Args:
        basis: "folded" or "raw"; "folded" where the model has norms when None.

    Raises:
        OutOfRange: there is no such memory.
        Unsupported: the model has no memories.

    Memory: one layer's key vectors, with the norm's gain folded in.
    """
    part = Part("memory", *lm.memory(layer, index))
    top, basis = positive_int("top", top), basis or default_basis(lm)
    written = writers_by_layer(lm, part, top, basis, inputs={"key"})
    read = readers_by_layer(lm, part, top, basis, inputs={"key"})
    return MemoryConnections(
        part.layer,
        part.index,
        basis,
        _strongest(lm, ((one.writer, one) for one in written.weights if one.cosine is None), top),
        _strongest(lm, ((one.writer, one) for one in written.weights if one.cosine is not None), top),
        _strongest(lm, ((one.reader, one) for one in read.weights), top),
        lm.d_model**-0.5,
        2.576 * lm.d_model**-0.5,
        {**written.missing, **read.missing},
    )


def _strongest(lm: Decoder, found: Iterable[tuple[str, VirtualWeight]], top: int) -> list[Connection]:
    chosen = sorted(found, key=lambda pair: -pair[1].ratio)[:top]
    named = [(Part.named(lm, name), one) for name, one in chosen]
    memories = [(of.layer, [of.index]) for of, one in named if one.cosine is not None]
    ends = iter(Values(lm).top_and_bottom(memories, _TOKENS) if memories else ())
    return [
        Connection(of.layer, of.index, one.ratio)
        if one.cosine is None
        else Connection(of.layer, of.index, one.cosine, lm.token_strings(next(ends)[0][0]))
        for of, one in named
    ]

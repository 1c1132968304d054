"""The tensors of a linear pass, between which relevance flows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.linear_model.linear_rules import linearized
from unembed.models.decoder import Decoder
from unembed.stream.hooks import Hook

PartKind = Literal["head", "memory", "feature"]


@dataclass(frozen=True, eq=False)
class Part:
    """The heads, the memories or the dictionary features of one layer in a pass.

    Attributes:
        own: what they add with: z of each head, or the coefficients, (batch, pos, node, ...).
        read: the same as a linear expression of what the layer reads; None where the layer is not opened.
        constant: memories whose coefficient reads nothing (the bias of an expert); None where there are none.
    """

    kind: PartKind
    layer: int
    own: Tensor
    read: Tensor | None
    constant: Bool[Tensor, " node"] | None = None


@dataclass(frozen=True, eq=False)
class Bias:
    """Biases of one module: `factor` is 0 at each position, and the derivative by it is their relevance there."""

    layer: int
    label: str
    factor: Float[Tensor, "batch pos"]


@dataclass(frozen=True, eq=False)
class Closed:
    """The output of a part that cannot be made linear; it is one node whose inside is not opened."""

    layer: int
    label: str
    own: Tensor


@dataclass(eq=False)
class LinearPass:
    """The tensors of a pass between which relevance flows.

    Attributes:
        logits: the model's own, (batch, pos, d_vocab).
        start: the stream that enters the first block.
        positions: the position embeddings in it, where the model adds them.
        streams: the stream that enters each layer.
        last: the stream behind the last layer.
        values_of: for layers that mix the values of an earlier layer, which one.
        closed: what is not opened: mixers without a known pattern, FFNs without memories, further writers.
        unopened: the names of parts whose own inside is not opened, for people.
        patterns: attention weights of the layers that are opened, (batch, head, dst, src).
    """

    lm: Decoder
    tokens: Int[Tensor, "batch pos"]
    is_cut: bool
    patterns: dict[int, Float[Tensor, "batch head dst src"]]
    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    start: Tensor = field(default_factory=lambda: torch.empty(0))
    positions: Tensor | None = None
    streams: dict[int, Tensor] = field(default_factory=dict)
    last: Tensor = field(default_factory=lambda: torch.empty(0))
    parts: dict[tuple[PartKind, int], Part] = field(default_factory=dict)
    values_of: dict[int, int] = field(default_factory=dict)
    biases: list[Bias] = field(default_factory=list)
    closed: list[Closed] = field(default_factory=list)
    unopened: list[str] = field(default_factory=list)

    def node(self, own: Tensor, read: Tensor | None) -> Tensor:
        """Return a part's tensor as later layers receive it: linear, or a leaf if the pass is cut there."""
        if self.is_cut or read is None:
            return own.detach().clone().requires_grad_()
        return linearized(own, read)

    def bias(self, layer: int, label: str) -> Float[Tensor, "batch pos"]:
        """Create a factor of a bias, 0 at each position."""
        dtype = torch.promote_types(self.lm.dtype, torch.float32)
        factor = torch.zeros(self.tokens.shape, dtype=dtype, device=self.lm.device, requires_grad=True)
        self.biases.append(Bias(layer, label, factor))
        return factor


def bias_term(factor: Float[Tensor, "batch pos"], bias: Tensor, like: Tensor) -> Tensor:
    """Return zeros whose derivative by the factor is the relevance of the bias."""
    here = factor.to(like.device).view(*like.shape[:-1], 1)
    return (here * bias.detach().to(here)).to(like.dtype)


Captures = Mapping[tuple[str, int], Callable[[Tensor], None]]
Hooks = Mapping[tuple[str, int], Hook]


@dataclass(frozen=True, eq=False)
class OtherNodes:
    """Nodes that a room above defines, in place of the memories of some layers.

    Attributes:
        layers: whose memories are not nodes.
        hooks: returns the captures and changes of a pass by which the others are, by point and layer.
    """

    layers: Set[int]
    hooks: Callable[[LinearPass], tuple[Captures, Hooks]]

"""The tensors of a linear pass; gradients between them give the flow of relevance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.linear_model.linear_rules import linearized
from unembed.models.decoder import Decoder
from unembed.names import QKRule
from unembed.stream.hooks import Hook

PartKind = Literal["head", "memory", "feature"]


@dataclass(frozen=True, eq=False)
class Part:
    """The heads, the memories or the dictionary features of one layer in a linear pass.

    Attributes:
        own: their activations in the run: z of each head, or the coefficients, (batch, pos, node, ...).
        read: the same activations as a linear function of what the layer reads; None if there is no such function.
        constant: True for memories whose coefficient does not depend on the input (the bias of an expert); None if the
            layer has no such memories.
    """

    kind: PartKind
    layer: int
    own: Tensor
    read: Tensor | None
    constant: Bool[Tensor, " node"] | None = None


@dataclass(frozen=True, eq=False)
class Bias:
    """The biases of one module.

    `factor` is 0 at each position; the gradient with respect to it is the relevance of the biases at that position.
    """

    layer: int
    label: str
    factor: Float[Tensor, "batch pos"]


@dataclass(frozen=True, eq=False)
class Closed:
    """The output of a component to which no linear rule applies: a leaf of the graph, at which gradients stop."""

    layer: int
    label: str
    own: Tensor


@dataclass(eq=False)
class LinearPass:
    """The tensors of a linear pass; gradients between them give the flow of relevance.

    Attributes:
        is_cut: whether heads, memories and features are leaves, at which gradients stop.
        logits: the model's own, (batch, pos, d_vocab).
        start: the residual stream that enters the first block.
        positions: the position embeddings contained in `start`; None if the model adds none.
        streams: the residual stream that enters each layer.
        last: the residual stream after the last layer.
        values_of: for each layer that mixes the values of an earlier layer, the number of the earlier layer.
        closed: outputs that are leaves: of mixers without a known pattern, FFNs without memories, and other components.
        unopened: display names of components through which relevance does not flow, because no linear rule applies.
        patterns: attention patterns of the layers in which the linear pass mixes the values itself.
        qk: whether queries and keys are constants or receive relevance (see `linear_pass`).
        live: by name and layer, outputs of projections with their gradients, until a hook of the heads or memories
            reads them.
    """

    lm: Decoder
    tokens: Int[Tensor, "batch pos"]
    is_cut: bool
    patterns: dict[int, Float[Tensor, "batch head dst src"]]
    qk: QKRule = "constant"
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
    live: dict[tuple[str, int], Tensor] = field(default_factory=dict[tuple[str, int], Tensor])

    def node(self, own: Tensor, read: Tensor | None) -> Tensor:
        """Return activations as later layers receive them: with the values of `own` and the gradients of `read`.

        In a cut pass, or if `read` is None, this is a leaf of the graph.
        """
        if self.is_cut or read is None:
            return own.detach().clone().requires_grad_()
        return linearized(own, read)

    def bias(self, layer: int, label: str) -> Float[Tensor, "batch pos"]:
        """Create the factor of a bias (see `Bias`), 0 at each position, and record it."""
        dtype = torch.promote_types(self.lm.dtype, torch.float32)
        factor = torch.zeros(self.tokens.shape, dtype=dtype, device=self.lm.device, requires_grad=True)
        self.biases.append(Bias(layer, label, factor))
        return factor


def bias_term(factor: Float[Tensor, "batch pos"], bias: Tensor, like: Tensor) -> Tensor:
    """Return zeros, shaped like `like`, whose gradient with respect to `factor` is the relevance of the bias."""
    here = factor.to(like.device).view(*like.shape[:-1], 1)
    return (here * bias.detach().to(here)).to(like.dtype)


Captures = Mapping[tuple[str, int], Callable[[Tensor], None]]
Hooks = Mapping[tuple[str, int], Hook]


@dataclass(frozen=True, eq=False)
class OtherNodes:
    """Graph nodes, such as dictionary features, that replace the memories of some layers in a linear pass.

    Attributes:
        layers: the layers whose memories are replaced.
        hooks: a function of the pass that returns two dicts by capture point and layer: callbacks that receive
            activations, and hooks that replace activations by the nodes.
    """

    layers: Set[int]
    hooks: Callable[[LinearPass], tuple[Captures, Hooks]]

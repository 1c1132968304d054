"""Include the memories of mixture-of-experts layers in a linear pass, with constant router weights."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unembed.linear_model.linear_rules import half_rule, identity_rule
from unembed.linear_model.pass_tensors import LinearPass, Part, bias_term
from unembed.models.structure.expert_pass import observed
from unembed.models.structure.experts import Experts, RoutedCoefficients
from unembed.models.structure.structure import FeedForwardSite
from unembed.stream.capture_points import ForwardPass
from unembed.stream.experts import dense_coefficients


def open_experts(
    stack: ExitStack, made: LinearPass, current: ForwardPass, layer: int, ffn: FeedForwardSite, experts: Experts
) -> None:
    """Make the coefficients of a mixture-of-experts layer linear in the FFN's input; `stack` removes the hooks."""
    entered: list[Tensor] = []

    def enter(_m: nn.Module, args: tuple[Any, ...]) -> None:
        entered[:] = [current.by_position(args[0])]

    def see(found: RoutedCoefficients, output: Tensor) -> Tensor:
        own = dense_coefficients(found, layer, current).detach()
        read = _expert_reading(made, layer, experts, own, entered[0])
        node = made.node(own, read)
        no_key = torch.zeros(experts.n_memories, dtype=torch.bool, device=own.device)
        if experts.has_bias:
            no_key[experts.width - 1 : experts.n_routed : experts.width] = True
        made.parts["memory", layer] = Part("memory", layer, node, read, no_key if experts.has_bias else None)
        nothing = (node - node.detach()).flatten(0, 1).to(output)
        written = output.detach() + (nothing @ made.lm.weights.values(layer).to(output)).view(output.shape)
        if experts.bias is not None:
            written = written + bias_term(made.bias(layer, "FFN"), experts.bias, written)
        return written

    stack.callback(ffn.module.register_forward_pre_hook(enter).remove)
    stack.enter_context(observed(experts, ffn.module, see))


def _expert_reading(
    made: LinearPass,
    layer: int,
    experts: Experts,
    own: Float[Tensor, "batch pos memory"],
    x: Float[Tensor, "batch pos d_model"],
) -> Float[Tensor, "batch pos memory"]:
    factor = made.bias(layer, "keys")

    def read(which: str) -> Tensor:
        found = x @ experts.keys(which).to(x)
        bias = experts.key_biases(which)
        return found if bias is None else found + bias.to(found) + bias_term(factor, bias, found)

    up = read("up")
    return half_rule(own, read("gate"), up) if experts.is_gated else identity_rule(own, up, "")

"""The linear rules: how each kind of component passes relevance from its output back to its input.

A rule writes a tensor of the run as a linear function of the component's input, with constants taken from the run. The
tensor's value stays the model's own, to the bit; only its gradients follow the rule.

Source: Achtibat et al. 2024 (AttnLRP); Rezaei Jafari et al. 2025 (RelP): LN rule, identity rule, half rule.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.activations import ACT2FN

from unembed.models.norms import Norm

_NEAR_ZERO = 1e-3


def linearized(own: Float[Tensor, "*axes"], linear: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Return a tensor with the values of `own` and the gradients of `linear`."""
    linear = linear.to(own)
    return own.detach() + (linear - linear.detach())


def norm_rule(norm: Norm, x: Float[Tensor, "*axes width"], y: Float[Tensor, "*axes width"]) -> Tensor:
    """Return a norm's output as a linear function of its input: its divisor and its bias are constants.

    Args:
        x: the norm's input.
        y: the norm's output.
    """
    x = x.to(norm.gain.device)  # layers may be placed on several devices
    scale = norm.scale(x.detach())
    return linearized(y, norm.frozen(x.to(scale.dtype), scale))


def ratio(whole: Float[Tensor, "*axes"], part: Float[Tensor, "*axes"], limit: float = 0.0) -> Float[Tensor, "*axes"]:
    """Return the constant c with whole = c * part, elementwise; `limit` where `part` is 0."""
    dtype = torch.promote_types(part.dtype, torch.float32)
    whole, part = whole.detach().to(dtype), part.detach().to(dtype)
    zero = part == 0
    return torch.where(zero, limit, whole / torch.where(zero, 1.0, part))


def identity_rule(
    m: Float[Tensor, "*pos d_mlp"], key: Float[Tensor, "*pos d_mlp"], activation: str
) -> Float[Tensor, "*pos d_mlp"]:
    """Return the coefficients m = f(z) of an ungated FFN as z * c, where c = f(z) / z is constant; z is `key`."""
    return key * ratio(m, key, slope_at_zero(activation)).to(key.dtype)


def half_rule(
    m: Float[Tensor, "*pos d_mlp"], gate: Float[Tensor, "*pos d_mlp"], up: Float[Tensor, "*pos d_mlp"]
) -> Float[Tensor, "*pos d_mlp"]:
    """Return the coefficients m = f(gate) * up of a gated FFN; `gate` and `up` each receive half of the relevance.

    f(gate) counts as gate * c, with the constant c = f(gate) / gate of the run.
    """
    through_gate = gate * ratio(m, gate).to(gate.dtype)
    through_up = up * ratio(m, up).to(up.dtype)
    return 0.5 * (through_gate + through_up)


def slope_at_zero(activation: str) -> float:
    """Return the limit of f(z) / z at 0 for a named activation, averaged over both sides; 0 for unknown names."""
    if activation not in ACT2FN:
        return 0.0
    with torch.no_grad():
        near = torch.tensor([_NEAR_ZERO, -_NEAR_ZERO], dtype=torch.float64)
        return float((ACT2FN[activation](near) / near).mean())

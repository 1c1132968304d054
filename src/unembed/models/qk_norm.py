"""Treat QK-norm, the norm applied to queries or keys, as a linear map with a known scale.

Some models normalise each head separately, with the same gains for all heads or with different ones; others normalise
all heads as one vector. Gain, bias, centring and the shape that the module accepts are measured on the module.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unembed.errors import InvalidInput

_PROBE, _SHIFT = 128.0, 32.0


@dataclass(frozen=True, eq=False)
class QKNorm:
    """The parts of a query or key norm other than its division, for all heads of a layer: centring, gain and bias."""

    module: nn.Module
    shape: tuple[int, ...]
    """The shape of the module's input for a single position, all heads together."""
    gain: Float[Tensor, "head d_head"]
    bias: Float[Tensor, "head d_head"]
    centred: bool

    @classmethod
    @torch.no_grad()
    def of(cls, module: nn.Module, heads: int, d_head: int, like: Tensor) -> QKNorm:
        """Measure a norm by its output for vectors of +1 and -1.

        The module may accept heads separately, or all heads concatenated.

        Raises:
            InvalidInput: the module accepts neither.
        """
        dtype = next((p.dtype for p in module.parameters()), like.dtype)
        # A norm with separate gains for each head expects the heads on the second axis; other norms refuse that shape,
        # so the next shapes are tried.
        for shape in ((1, heads, 1, d_head), (1, 1, heads, d_head), (1, 1, heads * d_head)):
            signs = torch.ones(shape, dtype=dtype, device=like.device)
            signs[..., 1::2] = -1
            try:
                plus, minus, shifted = (module(x) for x in (signs * _PROBE, -signs * _PROBE, signs * _PROBE + _SHIFT))
            except (RuntimeError, IndexError, ValueError):
                continue
            if plus.shape == signs.shape:
                centred = bool(torch.allclose(plus.float(), shifted.float(), rtol=2e-2, atol=1e-3))
                gain, bias = (plus - minus) / 2 * signs, (plus + minus) / 2
                return cls(module, shape, gain.view(heads, d_head), bias.view(heads, d_head), centred)
        raise InvalidInput(
            f"QK-norm {type(module).__name__}",
            why="it accepts neither separate heads nor concatenated heads",
            instead="Use basis='raw'",
        )

    def linear(self, x: Float[Tensor, "head *any d_head"]) -> Float[Tensor, "head *any d_head"]:
        """Apply centring and gain, without the division and the bias."""
        if self.centred:
            x = x - x.mean(dim=(0, -1) if len(self.shape) == 3 else -1, keepdim=True)
        between = (1,) * (x.dim() - 2)
        return x * self.gain.view(self.gain.shape[0], *between, self.gain.shape[1]).to(x.dtype)

    @torch.no_grad()
    def sizes(self, x: Float[Tensor, "head pos d_head"]) -> Float[Tensor, "head pos 1"]:
        """Return the number by which the module divides each head's vector at each position."""
        heads, pos, d_head = x.shape
        given = x.transpose(0, 1).reshape(pos, *self.shape[1:])
        out = self.module(given).view(pos, heads, d_head).transpose(0, 1) - self.bias[:, None]
        linear = self.linear(x)
        return (linear * linear).sum(-1, keepdim=True) / (linear * out).sum(-1, keepdim=True)

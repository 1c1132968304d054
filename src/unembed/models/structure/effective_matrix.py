"""Find the matrix that a quantized or wrapped linear layer multiplies by.

The matrix is dequantized if the layout is known; else it is measured by sending unit vectors through the layer.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unembed.models.offload import parameter
from unembed.models.structure.quantized import Layout

_ROWS = 1024
"""Number of unit vectors sent through a projection at once."""
_measuring: ContextVar[bool] = ContextVar("_measuring", default=False)


@dataclass(frozen=True, eq=False)
class EffectiveMatrix:
    """How to read the matrix of a quantized or wrapped linear layer, which does not multiply by its `weight`."""

    layout: Layout | None
    """The function that dequantizes its packed weight; None if the matrix is measured on unit vectors."""
    d_in: int
    dtype: torch.dtype
    computes_in: torch.dtype
    """The least precise dtype in its matrix product: some kernels multiply in bfloat16 regardless of the model's
    dtype."""
    device: torch.device

    @torch.no_grad()
    def matrix(self, module: nn.Module) -> Float[Tensor, "d_in d_out"]:
        """Return the matrix that the module multiplies by: dequantized, or measured by its outputs on unit vectors.

        Memory: the result; if it is measured, also 1,024 unit vectors and their outputs.
        """
        if self.layout is not None:
            return self.layout(module).to(self.dtype)
        zero = self._measured_bias(module)
        rows = []
        for start in range(0, self.d_in, _ROWS):
            count = min(_ROWS, self.d_in - start)
            units = torch.zeros(count, self.d_in, dtype=self.dtype, device=self.device)
            units[torch.arange(count), torch.arange(start, start + count)] = 1
            rows.append(_output(module, units) - zero)
        return torch.cat(rows)

    @torch.no_grad()
    def bias(self, module: nn.Module) -> Float[Tensor, " d_out"] | None:
        """Return the bias of the module, or None."""
        if self.layout is not None:
            return own_bias(module)
        bias = self._measured_bias(module)
        return bias if bool(bias.any()) else None

    def _measured_bias(self, module: nn.Module) -> Float[Tensor, " d_out"]:
        return _output(module, torch.zeros(1, self.d_in, dtype=self.dtype, device=self.device))[0]


def own_bias(module: nn.Module) -> Float[Tensor, " d_out"] | None:
    """Return a linear layer's bias, or None. In layers made by PyTorch's `quantize_dynamic`, `bias` is a method."""
    bias: Any = getattr(module, "bias", None)
    bias = bias() if callable(bias) and not isinstance(bias, Tensor) else parameter(module, "bias")
    return None if bias is None else bias.detach()


def is_measuring() -> bool:
    """Tell whether a layer is being called on unit vectors to measure it; hooks of a running pass ignore such calls."""
    return _measuring.get()


def _output(module: nn.Module, x: Float[Tensor, "row d_in"]) -> Float[Tensor, "row d_out"]:
    before = _measuring.set(True)
    try:
        return module(x)
    finally:
        _measuring.reset(before)

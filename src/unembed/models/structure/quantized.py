"""The matrices of linear layers with quantized weights, dequantized one layer at a time.

A layer's stored integers may be read in several ways (layouts). The layout that reproduces the layer's output in a
recorded forward pass is used (`unembed.models.structure.projections`). A layer that no layout reproduces is measured on
unit vectors if it is linear in its input, and refused if it is not.

| layout | how the weights are stored |
|---|---|
| `tensor` | a weight that can dequantize itself: torchao, quanto, `quantize_dynamic` |
| `bitsandbytes_4bit`, `bitsandbytes_8bit` | a packed weight with its `quant_state`; int8 rows with their scales `SCB` |
| `hqq` | a module that can dequantize itself |
| `gptq` | `qweight` packed along inputs, zero points stored minus one |
| `gptq_v2` | `qweight` packed along inputs, zero points stored unchanged |
| `awq` | `qweight` packed along outputs, eight interleaved 4-bit columns in each word |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

Matrix = Float[Tensor, "d_in d_out"]
Layout = Callable[[nn.Module], Matrix]

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""In AWQ's layout a 32-bit word holds eight 4-bit columns; this is the place of each column in the word."""


def layouts_of(module: nn.Module) -> tuple[Layout, ...]:
    """Return the functions that may dequantize a layer's weight, one per possible layout; empty if not quantized."""
    own: Any = module
    weight = getattr(own, "weight", None)
    packed = weight() if callable(weight) and not isinstance(weight, Tensor) else weight
    found: list[Layout] = []
    if isinstance(packed, Tensor):
        if getattr(packed, "quant_state", None) is not None:
            found.append(_bitsandbytes_4bit)
        elif getattr(packed, "SCB", None) is not None:
            found.append(_bitsandbytes_8bit)
        elif is_packed(packed):
            found.append(_tensor)
    if callable(getattr(own, "dequantize", None)):
        found.append(_hqq)
    if all(isinstance(getattr(own, name, None), Tensor) for name in ("qweight", "qzeros", "scales")):
        if own.qweight.shape[1] == own.scales.shape[1]:
            found += [_gptq, _gptq_v2]
        elif own.qweight.shape[1] * 8 == own.scales.shape[1]:
            found.append(_awq)
    return tuple(found)


def is_packed(weight: Tensor) -> bool:
    """Tell whether a tensor must be dequantized before its values can be read."""
    is_subclass = type(weight.detach()) is not Tensor
    return weight.is_quantized or (is_subclass and callable(getattr(weight, "dequantize", None)))


def _tensor(module: nn.Module) -> Matrix:
    own: Any = module
    weight = own.weight if isinstance(own.weight, Tensor) else own.weight()
    return weight.detach().dequantize().T


def _bitsandbytes_4bit(module: nn.Module) -> Matrix:
    from bitsandbytes.functional import dequantize_4bit  # pyright: ignore[reportMissingImports]

    own: Any = module
    return dequantize_4bit(own.weight.data, own.weight.quant_state).T


def _bitsandbytes_8bit(module: nn.Module) -> Matrix:
    own: Any = module
    return (own.weight.data.float() * own.weight.SCB[:, None].to(own.weight.device) / 127).T


def _hqq(module: nn.Module) -> Matrix:
    own: Any = module
    return own.dequantize().detach().T


def _gptq(module: nn.Module) -> Matrix:
    return _gptq_matrix(module, offset=1)


def _gptq_v2(module: nn.Module) -> Matrix:
    return _gptq_matrix(module, offset=0)


def _gptq_matrix(module: nn.Module, offset: int) -> Matrix:
    """Return scale * (integer - (zero + offset)), with the scale and zero point of the input's group."""
    own: Any = module
    d_in = int(own.in_features)
    bits = own.qweight.shape[0] * 32 // d_in
    numbers = _unpacked(own.qweight.T, bits).T[:d_in]
    zeros = _unpacked(own.qzeros, bits)[:, : own.scales.shape[1]] + offset
    if isinstance(group := getattr(own, "g_idx", None), Tensor) and group.numel() == d_in:
        group = group.long()
    else:
        group = torch.arange(d_in, device=numbers.device) // -(-d_in // own.scales.shape[0])
    return own.scales[group] * (numbers - zeros[group]).to(own.scales.dtype)


def _awq(module: nn.Module) -> Matrix:
    own: Any = module
    order = torch.tensor(_AWQ_ORDER, device=own.qweight.device)

    def columns(t: Tensor) -> Tensor:
        return _unpacked(t, 4).unflatten(1, (-1, 8))[:, :, order].flatten(1)

    numbers, zeros = columns(own.qweight), columns(own.qzeros)
    group = torch.arange(len(numbers), device=numbers.device) // (len(numbers) // len(zeros))
    return own.scales[group] * (numbers - zeros[group]).to(own.scales.dtype)


def _unpacked(t: Int[Tensor, "row word"], bits: int) -> Int[Tensor, "row number"]:
    """Unpack the unsigned integers of `bits` bits each from every row's 32-bit words, lowest bits first."""
    shifts = torch.arange(0, 32, bits, device=t.device)
    return ((t.long()[..., None] >> shifts) & ((1 << bits) - 1)).flatten(1)


def computing_dtype(module: nn.Module, output: Tensor) -> torch.dtype:
    """Return the least precise floating dtype in a linear layer's computation, as far as its attributes show."""
    own: Any = module
    state = getattr(getattr(own, "weight", None), "quant_state", None)
    stated = (output.dtype, getattr(own, "compute_dtype", None), getattr(state, "dtype", None))
    scales = getattr(own, "scales", None)
    dtypes = [d for d in (*stated, getattr(scales, "dtype", None)) if isinstance(d, torch.dtype)]
    return max((d for d in dtypes if d.is_floating_point), key=lambda d: torch.finfo(d).eps)

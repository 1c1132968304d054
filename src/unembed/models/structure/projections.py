"""Check that each linear layer's recorded output is its input times the matrix that `Weights` returns.

A linear layer may be wrapped (unmerged LoRA, DoRA) or quantized; then it does not multiply by its `weight`. If the
layout of a quantized layer is known, it is dequantized. Any other layer that is affine is measured on unit vectors. If
a layer is not affine, reading its weights raises an error with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from unembed.models.offload import device_of, is_readable, parameter
from unembed.models.structure.effective_matrix import EffectiveMatrix, own_bias
from unembed.models.structure.probe import Probe, is_linear, relative
from unembed.models.structure.quantized import computing_dtype, is_packed, layouts_of
from unembed.models.structure.structure import Block


@dataclass
class Projections:
    """The linear layers that do not multiply by their `weight`."""

    effective: dict[nn.Module, EffectiveMatrix] = field(default_factory=dict)
    """Quantized or wrapped layers that are affine."""
    not_linear: dict[nn.Module, str] = field(default_factory=dict)
    """Layers that are not affine, with the reason."""


def check_projections(probe: Probe, blocks: Iterable[Block], head: nn.Module) -> Projections:
    """Return how to read the matrix of each linear layer that does not multiply by its `weight`."""
    paths = {module: path for path, module in probe.hf.named_modules()}
    found = Projections()
    for module in dict.fromkeys(_projections(blocks, head)):
        call = probe.recording.calls.get(paths.get(module, ""))
        if call is None or call.given is None or call.returned is None or hasattr(module, "W_U"):
            continue
        if not is_readable(module):  # reading its weights later raises an error with the reason
            continue
        x, y = (t.reshape(-1, t.shape[-1]) for t in (call.given, call.returned))
        if (type(module) in (nn.Linear, Conv1D) or next(module.children(), None) is None) and _plain_matches(
            module, x, y
        ):
            continue
        layout = next((read for read in layouts_of(module) if _gives(read(module), module, x, y)), None)
        if layout is None and (reason := _not_affine(module, x, y)):
            found.not_linear[module] = f"{type(module).__name__} at {paths[module]} {reason}"
            continue
        device = device_of(module) or x.device
        found.effective[module] = EffectiveMatrix(layout, x.shape[1], x.dtype, computing_dtype(module, y), device)
    return found


def _projections(blocks: Iterable[Block], head: nn.Module) -> Iterable[nn.Module]:
    for block in blocks:
        if block.mixer is not None:
            layout = block.mixer.head_layout
            yield from (() if layout is None else (layout.q, layout.k, layout.v))
            readings = block.mixer.readings
            for part in () if readings is None else (r for parts in readings.parts.values() for r in parts):
                yield from (m for m in (part.module, part.latent and part.latent.module) if m is not None)
            if block.mixer.out_projection is not None:
                yield block.mixer.out_projection
        site = block.feed_forward
        if site is not None:
            yield from (m for m in (site.up_proj, site.gate_proj, site.down_proj) if m is not None)
    if is_linear(head):
        yield head


def _plain_matches(module: nn.Module, x: Tensor, y: Tensor) -> bool:
    """Tell whether the module's own weight and bias give its output, up to rounding."""
    weight = parameter(module)
    if weight is None or is_packed(weight) or weight.dim() != 2 or not weight.is_floating_point():
        return False
    return _gives(weight.detach() if isinstance(module, Conv1D) else weight.detach().T, module, x, y)


def _gives(matrix: Tensor, module: nn.Module, x: Tensor, y: Tensor) -> bool:
    """Tell whether x times a matrix, plus the module's bias, is the module's output y, up to rounding."""
    if matrix.shape != (x.shape[-1], y.shape[-1]):
        return False
    bias = own_bias(module)
    predicted = x.float() @ matrix.float().to(x.device)
    if bias is not None:
        predicted = predicted + bias.float().to(x.device)
    return relative(predicted, y.float()) <= _rounding(module, y)


def _rounding(module: nn.Module, y: Tensor) -> float:
    """Return the relative error to expect of a matrix product, from the coarsest dtype in its computation."""
    return max(2e-5, torch.finfo(computing_dtype(module, y)).eps)


def _not_affine(module: nn.Module, x: Tensor, y: Tensor) -> str:
    """Return why a module is not x W + b on these inputs; an empty string if it is."""
    with torch.no_grad():
        try:
            zero = module(torch.zeros_like(x[:1]))
            halves, shifted = module(0.5 * x), module(x + x.flip(0))
        except (RuntimeError, TypeError, ValueError) as error:
            return f"cannot be called on its own: {str(error)[:80]}"
    limit = 8 * _rounding(module, y)
    whole = (y - zero).double()
    scale = whole.norm().clamp_min(1e-30)
    homogeneous = (2 * (halves - zero).double() - whole).norm() / scale
    additive = ((shifted - zero).double() - whole - whole.flip(0)).norm() / scale
    if not (float(homogeneous) <= limit and float(additive) <= limit):  # `not <=`, so that NaN counts as not linear
        return "is not linear in its input (it quantizes activations, or routes them)"
    return ""

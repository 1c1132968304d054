"""Whether each projection multiplies by the matrix that we would hand out, checked on the dry run.

A projection may be wrapped (unmerged LoRA, DoRA) or packed (quantized): then its `weight` is not the matrix it
multiplies by. If it is still affine, its matrix is measured on unit vectors; if it is not, questions about its weights
are refused with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from unembed.models.offload import parameter
from unembed.models.structure.attention_layout import relative
from unembed.models.structure.probe import Probe
from unembed.models.structure.structure import Block

_ROWS = 1024
"""Unit vectors sent through a projection at once."""


def check_projections(
    probe: Probe, blocks: Iterable[Block], head: nn.Module
) -> tuple[frozenset[nn.Module], dict[nn.Module, str]]:
    """The projections whose matrix must be measured, and those that are not affine, with the reason."""
    paths = {module: path for path, module in probe.hf.named_modules()}
    probed, not_linear = set(), {}
    for module in dict.fromkeys(_projections(blocks, head)):
        call = probe.recording.calls.get(paths.get(module, ""))
        if call is None or call.given is None or call.returned is None or hasattr(module, "W_U"):
            continue
        x, y = (t.reshape(-1, t.shape[-1]) for t in (call.given, call.returned))
        if type(module) in (nn.Linear, Conv1D) and _plain_matches(module, x, y):
            continue
        if not _has_children(module) and _plain_matches(module, x, y):
            continue
        reason = _not_affine(module, x, y)
        if reason:
            not_linear[module] = f"{type(module).__name__} at {paths[module]} {reason}"
        else:
            probed.add(module)
    return frozenset(probed), not_linear


def _projections(blocks: Iterable[Block], head: nn.Module) -> Iterable[nn.Module]:
    for block in blocks:
        if block.mixer is not None:
            layout = block.mixer.head_layout
            yield from (() if layout is None else (layout.q, layout.k, layout.v))
            if block.mixer.out_projection is not None:
                yield block.mixer.out_projection
        site = block.feed_forward
        if site is not None:
            yield from (m for m in (site.up_proj, site.gate_proj, site.down_proj) if m is not None)
    if isinstance(getattr(head, "weight", None), Tensor):
        yield head


def _has_children(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _plain_matches(module: nn.Module, x: Tensor, y: Tensor) -> bool:
    """Whether the module's own weight and bias give its output, up to the rounding of the output's dtype."""
    weight = parameter(module)
    if weight is None or weight.dim() != 2 or not weight.is_floating_point():
        return False
    matrix = weight.detach() if isinstance(module, Conv1D) else weight.detach().T
    if matrix.shape != (x.shape[-1], y.shape[-1]):
        return False
    bias = parameter(module, "bias")
    predicted = x.float() @ matrix.float().to(x.device)
    if bias is not None:
        predicted = predicted + bias.detach().float().to(x.device)
    return relative(predicted, y.float()) <= _rounding(y)


def _rounding(y: Tensor) -> float:
    return max(2e-5, torch.finfo(y.dtype).eps)


def _not_affine(module: nn.Module, x: Tensor, y: Tensor) -> str:
    """Why a module is not x W + b on these inputs; empty when it is."""
    with torch.no_grad():
        try:
            zero = module(torch.zeros_like(x[:1]))
            halves, shifted = module(0.5 * x), module(x + x.flip(0))
        except (RuntimeError, TypeError, ValueError) as error:
            return f"cannot be called on its own: {str(error)[:80]}"
    limit = 8 * _rounding(y)
    whole = (y - zero).double()
    scale = whole.norm().clamp_min(1e-30)
    homogeneous = (2 * (halves - zero).double() - whole).norm() / scale
    additive = ((shifted - zero).double() - whole - whole.flip(0)).norm() / scale
    if not (float(homogeneous) <= limit and float(additive) <= limit):  # also where zero gives NaN
        return "is not linear in its input (it quantizes activations, or routes them)"
    return ""


@torch.no_grad()
def measured_matrix(
    module: nn.Module, d_in: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "d_in d_out"]:
    """The matrix of an affine module, from its outputs on unit vectors.

    Memory: the result, plus 1,024 unit vectors and their outputs.
    """
    zero = module(torch.zeros(1, d_in, dtype=dtype, device=device))
    rows = []
    for start in range(0, d_in, _ROWS):
        count = min(_ROWS, d_in - start)
        units = torch.zeros(count, d_in, dtype=dtype, device=device)
        units[torch.arange(count), torch.arange(start, start + count)] = 1
        rows.append(module(units) - zero)
    return torch.cat(rows)


@torch.no_grad()
def measured_bias(module: nn.Module, d_in: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " d_out"]:
    """What an affine module returns for a zero vector."""
    return module(torch.zeros(1, d_in, dtype=dtype, device=device))[0]

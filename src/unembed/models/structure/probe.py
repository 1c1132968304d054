"""A model with its recorded forward pass, and functions that compare recorded tensors."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from unembed.errors import ModelNotUnderstood
from unembed.models.norms import Norm, OpaqueNorm
from unembed.models.structure.dry_run import Recording

_HOW_TO_ADD = "Open an issue with the config, or see models/structure/families.py on adding a family"


def not_understood(hf: PreTrainedModel, part: str, why: str, instead: str | None = None) -> ModelNotUnderstood:
    """Return the error that names the part of a model that was not recognised, and says what to do."""
    return ModelNotUnderstood(f"{type(hf).__name__}: {part}", why=why, instead=instead or _HOW_TO_ADD)


def same(a: Tensor | None, b: Tensor | None) -> bool:
    """Tell whether two tensors are exactly equal; False if either is None."""
    return a is not None and b is not None and a.shape == b.shape and bool(torch.equal(a, b))


def relative(a: Tensor, b: Tensor) -> float:
    """Return |a - b| / |b| (Euclidean norms); infinity if the shapes differ."""
    if a.shape != b.shape:
        return math.inf
    a, b = a.double(), b.double()
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def factor_of(t: Tensor, goal: Tensor) -> float:
    """Return the factor for which factor * t is closest to `goal` in least squares."""
    return float((t * goal).double().sum() / t.double().square().sum().clamp_min(1e-30))


def flat(t: Tensor | None) -> Tensor | None:
    """Merge all axes but the last into one, because some families flatten batch and position; None stays None."""
    return None if t is None else t.reshape(-1, t.shape[-1])


def is_linear(module: nn.Module) -> bool:
    """Tell whether a module is a linear layer, which includes quantized and wrapped ones."""
    if isinstance(module, nn.Embedding):
        return False
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor) and weight.dim() == 2:
        return True
    return bool(re.search(r"linear(4bit|8bit\w*|nf4|fp8)?$", type(module).__name__.lower()))


def holds_weights(module: nn.Module) -> bool:
    """Tell whether a module has weights: parameters, or quantized linear layers, which may have no parameters."""
    return next(module.parameters(), None) is not None or any(is_linear(m) for m in module.modules())


@dataclass(frozen=True)
class Probe:
    """The model whose structure is being found, and its recorded forward pass."""

    hf: PreTrainedModel
    config: Any
    recording: Recording
    d_model: int
    tolerance: float
    norms: dict[str, nn.Module]

    def path_of(self, module: nn.Module) -> str:
        """Return the path of a module in the model."""
        return next(path for path, other in self.hf.named_modules() if other is module)

    def norm(self, path: str) -> Norm:
        """Return the norm at a path; its formula is checked against its recorded output."""
        norm = Norm(self.norms[path], path, self.d_model, self.hf.get_input_embeddings())
        given, returned = self.recording.given(path), self.recording.returned(path)
        assert given is not None and returned is not None
        norm.check(given, returned, max(self.tolerance, 1e-4))
        return norm

    def entry_norm(self, path: str) -> Norm:
        """Return the norm before attention or FFN; an `OpaqueNorm` if it is not linear when its scale is constant."""
        try:
            return self.norm(path)
        except (ModelNotUnderstood, RuntimeError) as error:
            kind = type(self.norms[path]).__name__
            reason = error.why if isinstance(error, ModelNotUnderstood) else f"{kind} cannot be called on its own"
            return OpaqueNorm(self.norms[path], path, self.d_model, reason=f"{kind}: {reason}")

    def norm_returning(self, tensor: Tensor | None, within: str) -> str | None:
        """Return the path of the norm under the path `within` that returned this tensor, or None."""
        return next((p for p in self.norms if p.startswith(within) and same(self.recording.returned(p), tensor)), None)

    @property
    def way_on(self) -> str | None:
        """The advice for a block whose output is none of the sums that were tried: load the model in float32.

        In a narrower dtype, rounding may be why no sum matches. None if the model is in float32 or float64.
        """
        within = "Load with dtype='float32': in half precision, rounding errors hide factors of single channels"
        return within if self.tolerance > 1e-3 else None

    def fail(self, part: str, why: str, instead: str | None = None) -> ModelNotUnderstood:
        """Return the error that names a part of this model that was not recognised."""
        return not_understood(self.hf, part, why, instead)


def called_linears(probe: Probe, path: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the linear layers inside a module, with their paths, in the order in which they were called."""
    inside = {f"{path}.{n}": m for n, m in module.named_modules() if n and is_linear(m)}
    # Linear layers inside another linear layer are left out: they are parts of a wrapped projection (LoRA's base layer
    # and its two factors).
    outer = {p: m for p, m in inside.items() if not any(p.startswith(f"{q}.") for q in inside)}
    return [(p, outer[p]) for p in probe.recording.calls if p in outer]

"""Differential attention: a head's pattern is one softmax minus a learned multiple of another (DiffLlama).

Source: Ye et al. 2024, "Differential Transformer", equation 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unembed.models.offload import own

_LEARNED = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


@dataclass(frozen=True, eq=False)
class DifferentialPattern:
    """How each head's attention pattern is computed from the two softmaxes of differential attention."""

    module: nn.Module
    no_scores = "its pattern is the difference of two softmaxes, so that a head has two queries and two keys"
    """Why attention scores cannot be computed from one query and one key of each head."""

    @property
    def factor(self) -> Float[Tensor, ""]:
        """The factor of the second softmax: exp(q1 . k1) - exp(q2 . k2) + a constant of the layer.

        Here q1, k1, q2 and k2 are learned parameters of the layer, not queries and keys of tokens.
        """
        module: Any = self.module
        q1, k1, q2, k2 = (own(self.module, name) for name in _LEARNED)
        first, second = ((q * k).sum(dtype=torch.float32).exp().to(q.dtype) for q, k in ((q1, k1), (q2, k2)))
        return first - second + module.lambda_init

    def combined(self, weights: Float[Tensor, "batch twice dst src"]) -> Float[Tensor, "batch head dst src"]:
        """Return first softmax - factor * second softmax, for each head.

        Rows add up to 1 minus the factor, and entries may be negative.
        """
        first, second = weights.chunk(2, dim=1)
        return first - self.factor.to(weights) * second


def differential_pattern(module: nn.Module) -> DifferentialPattern | None:
    """Return how an attention module combines two softmaxes per head; None if it computes only one per head."""
    return DifferentialPattern(module) if all(hasattr(module, name) for name in _LEARNED) else None

"""Estimate effects by relevance: derivatives of a linearised model in place of the model's own.

A gradient describes the model only near the values of the run, but an ablation is a large change, after which norm
scales, attention patterns and the slopes of activation functions differ. The linear rules treat norm scales and
attention patterns as constants, and replace an activation function by its average slope from zero to its input.

Source: Rezaei Jafari et al. 2025, "RelP", section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.causality.metrics import MetricFunction
from unembed.causality.replaced_pass import Place
from unembed.linear_model.linear_pass import linear_pass
from unembed.linear_model.linear_rules import norm_rule
from unembed.linear_model.pass_tensors import PartKind
from unembed.models.decoder import Decoder

_KINDS: dict[str, PartKind] = {"z": "head", "coefficients": "memory"}


def relevance_slopes(
    lm: Decoder, ids: Int[Tensor, "1 pos"], places: Sequence[Place], function: MetricFunction
) -> dict[Place, tuple[Float[Tensor, "pos width"], Float[Tensor, "pos width"]]]:
    """Return activations of a run, and the derivatives of a metric with respect to them under the linear rules.

    Activations that the linearised model does not have are left out.

    Raises:
        Unsupported: the model has several streams, or a final norm that is not linear at a constant scale.
        SumNotProved: a head's attention pattern times its values is not the z that the model computed.

    Memory: that of `linear_pass`.
    """
    made = linear_pass(lm, ids)
    parts = {(p, n): made.parts.get((_KINDS[p], n)) for p, n in places}
    found = {place: part.own for place, part in parts.items() if part is not None and part.own.requires_grad}
    norm = lm.structure.final_norm
    with torch.enable_grad():
        last = made.last[:, -1]
        read = last if norm is None else norm_rule(norm, last, norm.normed(last))
        value = function(lm.structure.capped(lm.structure.head(read).to(last.device)))[0]
    slopes = torch.autograd.grad(value, list(found.values()), allow_unused=True)

    def by_position(own: Tensor) -> Tensor:
        return own.detach().reshape(ids.shape[1], -1)

    return {
        place: (by_position(own), torch.zeros_like(by_position(own)) if slope is None else by_position(slope))
        for (place, own), slope in zip(found.items(), slopes, strict=True)
    }

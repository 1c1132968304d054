"""Compute total effects next to direct ones, by ablating each component of an attribution alone.

The direct effect is the component's contribution to the logit. The total effect is how much the same logit (or
difference of logits) falls if the output of that component alone is set to zero at the attribution's position. It
includes what later layers do with that output.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from unembed.causality.metrics import logit_difference
from unembed.causality.replaced_pass import Replacement
from unembed.causality.rerun import Rerun
from unembed.errors import Unsupported
from unembed.logit_attribution import Attribution, Row
from unembed.models.decoder import Decoder
from unembed.stream.interventions import Edits
from unembed.stream.run import Run, position_of

OUTPUTS = {"head": "z", "memory": "coefficients", "attention": "attn_out", "mixer": "attn_out", "ffn": "mlp_out"}
"""The capture point of the output that is set to zero to ablate a component of each kind."""


@torch.no_grad()
def total_effects(
    lm: Decoder, seen: Run, attribution: Attribution, rows: Sequence[Row], edits: Edits = ()
) -> list[float | None]:
    """Return the total effect of each component, in logits; None for embeddings, positions and biases.

    Embeddings, positions and biases are not ablated. The ablations of all other components run in batches, in passes
    that start at the ablated layer.

    Raises:
        Unsupported: the attribution splits heads by source token.
    """
    if attribution.by == "source":
        raise Unsupported(
            "total effects by source token",
            why="ablating a head removes what it reads from all tokens",
            instead='Use by="head"',
        )
    position = position_of(seen, attribution.position)
    rerun = Rerun(lm, seen.tokens[:, : position + 1], (), edits)
    metric = logit_difference(attribution.token, attribution.against).bind(lm, rerun.reference)
    where = torch.tensor([position])
    found: list[float | None] = [None] * len(rows)
    chosen: list[int] = []
    replacements: list[list[Replacement]] = []
    for i, row in enumerate(rows):
        kind = row.label.split()[0]
        if " bias" in row.label or kind not in OUTPUTS or row.layer is None:
            continue
        chosen.append(i)
        replacements.append([zeroed(kind, row.layer, row.index, where)])
    if chosen:
        baseline = float(metric(rerun.reference[None])[0])
        for i, value in zip(chosen, rerun.measured(replacements, metric).tolist(), strict=True):
            found[i] = baseline - value
    return found


def zeroed(kind: str, layer: int, index: int | None, where: Int[Tensor, " p"]) -> Replacement:
    """Return the replacement by zero of a component's output at some positions; kinds as in `OUTPUTS`."""
    return Replacement(
        OUTPUTS[kind], layer, where, torch.tensor([index]) if kind == "memory" else index, torch.tensor(0.0)
    )

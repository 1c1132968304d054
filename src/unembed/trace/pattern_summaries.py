"""Summaries of a prompt's attention patterns, computed layer by layer: all patterns are too large to store."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from unembed.models.decoder import Decoder
from unembed.stream.interventions import Edits
from unembed.stream.run import Tokens, run

SIDE = 24
"""Largest number of rows and of columns of a picture."""


@dataclass(frozen=True, eq=False)
class PatternSummary:
    """The attention patterns of one layer: a small picture and two means for each head."""

    picture: UInt8[Tensor, "head side side"]
    """The weights in 256ths: the largest of each block of positions, or one for each pair of a short prompt."""
    own: Float[Tensor, " head"]
    """Mean attention of a position to itself."""
    entropy: Float[Tensor, " head"]
    """Mean over positions of the attention's entropy divided by that of uniform attention; the first position is left
    out. NaN if weights are negative, as the difference of two softmaxes can be: they have no entropy."""


def pattern_summaries(lm: Decoder, tokens: Tokens, edits: Edits) -> dict[int, PatternSummary]:
    """Return the summary of each layer that has attention, from one run of a prompt.

    Memory: one layer's patterns.
    """
    found: dict[int, PatternSummary] = {}

    def keep(pattern: Tensor, layer: int) -> None:
        found[layer] = _summary(pattern[0].float().cpu())

    last = lm.attention_layers[-1]
    run(lm, tokens, "resid_post", edits, logits=False, layers=[last], hooks={"pattern": keep})
    return found


def _summary(pattern: Float[Tensor, "head pos pos"]) -> PatternSummary:
    small = torch.nn.functional.adaptive_max_pool2d(pattern, min(pattern.shape[-1], SIDE))
    uniform = torch.arange(2, pattern.shape[-1] + 1).log()  # at positions 1, 2, ...
    entropy = (torch.special.entr(pattern).sum(-1)[..., 1:] / uniform).mean(-1)
    return PatternSummary(
        (small * 255).round().clamp(0, 255).to(torch.uint8),
        pattern.diagonal(dim1=-2, dim2=-1).mean(-1),
        entropy.where(entropy.isfinite(), torch.nan),
    )

"""Summaries of a prompt's attention patterns, computed layer by layer, because all patterns are too large to store."""

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
    """The attention patterns of one layer: for each head a small picture, and means over positions."""

    picture: UInt8[Tensor, "head side side"]
    """Attention weights times 255: one for each pair of positions or, in a prompt of more than `SIDE` tokens, the
    largest weight in each block of pairs."""
    own: Float[Tensor, " head"]
    """The mean weight with which a position attends to itself."""
    entropy: Float[Tensor, " head"]
    """The entropy of the attention weights divided by that of uniform attention, averaged over all positions but the
    first. NaN for a head with negative weights (such as the difference of two softmaxes), which have no entropy."""


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
    # The entropy of uniform attention at positions 1, 2, ..., which see 2, 3, ... positions. At position 0 it is 0, so
    # that position is left out.
    uniform = torch.arange(2, pattern.shape[-1] + 1).log()
    entropy = (torch.special.entr(pattern).sum(-1)[..., 1:] / uniform).mean(-1)
    return PatternSummary(
        (small * 255).round().clamp(0, 255).to(torch.uint8),
        pattern.diagonal(dim1=-2, dim2=-1).mean(-1),
        entropy.where(entropy.isfinite(), torch.nan),
    )

"""Scores of every head on one prompt: its contribution to a token's logit, and the shape of its attention pattern."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.weights.by_layer import by_layer
from unembed.attention.weights.folded_weights import require_heads
from unembed.logit_attribution import attribution, points_needed
from unembed.models.decoder import Decoder
from unembed.stream.run import Run, position_of


@dataclass(frozen=True, eq=False)
class PromptHeadScores:
    """One score of each kind for each head, on one prompt; NaN in layers without attention.

    Attributes:
        position: whose logits the effects are on.
        token: whose logit.
        against: the token it is compared with, if any.
        logit: the model's logit of the token, or its difference to that of `against`.
        effect: each head's contribution to `logit`.
        self_attention: mean attention of a position to itself.
        entropy: mean entropy of the attention over that of uniform attention; the first position is left out, so that
            a prompt of one token has none (NaN).
    """

    position: int
    token: int
    against: int | None
    logit: float
    effect: Float[Tensor, "layer head"]
    self_attention: Float[Tensor, "layer head"]
    entropy: Float[Tensor, "layer head"]


def required_points(lm: Decoder) -> tuple[str, ...]:
    """The points that a run must have captured."""
    return (*points_needed(lm, "head"), "pattern")


@torch.no_grad()
def prompt_head_scores(
    lm: Decoder, run: Run, position: int = -1, token: str | int | None = None, against: str | int | None = None
) -> PromptHeadScores:
    """Each head's direct effect on a token's logit, or on a difference of two, and the shape of its pattern.

    Args:
        run: a run of one prompt, edited or not, that captured `required_points`.
        position: whose logits.
        token: whose logit; the model's prediction when None.
        against: the token it is compared with; none when None.

    Raises:
        InvalidInput: both are the same token.
        OutOfRange: there is no such position.
        NotOneToken: the text is not a single token.
        SumNotProved: the contributions do not add up to the logit.
        Unsupported: no layer has attention, or its output is no sum over heads.
    """
    require_heads(lm, "head scores")
    position = position_of(run, position)
    target = int(run.logits[0, position].argmax()) if token is None else lm.single_token(token)
    contributions = attribution(lm, run, target, position, against, by="head")
    effect = {n: torch.zeros(lm.structure.blocks[n].attention.n_heads) for n in lm.attention_layers}
    for row in contributions.rows:
        if row.layer in effect and row.index is not None:
            effect[row.layer][row.index] = row.contribution
    patterns = by_layer(lm.n_layers, {n: run.at("pattern", n)[0].float().cpu() for n in lm.attention_layers})
    uniform = torch.arange(2, patterns.shape[-1] + 1).log()  # entropy of uniform attention at positions 1, 2, ...
    entropy = (torch.special.entr(patterns).sum(-1)[..., 1:] / uniform).mean(-1)
    return PromptHeadScores(
        position,
        target,
        None if against is None else lm.single_token(against),
        contributions.logit,
        by_layer(lm.n_layers, effect),
        patterns.diagonal(dim1=-2, dim2=-1).mean(-1),
        entropy.where(entropy.isfinite(), torch.nan),  # weights below zero, as of two softmaxes, have none
    )

"""Choose an exit threshold by conformal risk control on generated text.

The threshold is chosen so that the expected share of generated tokens that the full model would not have chosen is at
most a given number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from unembed.early_exit.generation import generate
from unembed.early_exit.protocols import Exit
from unembed.early_exit.thresholds import lowest_threshold
from unembed.models.decoder import Decoder
from unembed.stream.run import cache_argument


@torch.no_grad()
def generation_threshold(
    rule: Exit,
    prompts: Sequence[str],
    disagreement: float,
    thresholds: Sequence[float],
    *,
    max_new_tokens: int = 40,
) -> float:
    """Find the lowest threshold at which the expected disagreement of generated text is at most `disagreement`.

    A bound measured on prefixes of a corpus is not valid for text that is generated with early exit. Here each prompt
    is continued at each threshold, from the highest to the lowest. The loss of a continuation is the share of new
    tokens that the full model would not have chosen after the same text. Conformal risk control then chooses a
    threshold from the losses.

    Args:
        rule: the rule whose score is used; its thresholds are ignored.
        prompts: texts like those to be continued; at least 1 / disagreement of them.
        disagreement: largest expected share of tokens that the full model would not have chosen.
        thresholds: the thresholds to try.
        max_new_tokens: number of tokens to generate for each prompt.

    Returns:
        The threshold; infinity (never exit early) if even the highest one exceeds the bound.

    Source: Angelopoulos et al. 2022, Theorem 1.
    """

    def changed(candidate: Exit, prompt: str) -> float:
        made = generate(candidate, prompt, max_new_tokens=max_new_tokens, min_new_tokens=max_new_tokens)
        right, _ = score_continuation(rule.lm, made.ids, made.start)
        return 1 - sum(right) / max(len(right), 1)

    def losses(threshold: float) -> np.ndarray:
        return np.array([changed(rule.at(threshold), prompt) for prompt in prompts])

    return lowest_threshold(sorted(thresholds, reverse=True), losses, disagreement)


def score_continuation(lm: Decoder, ids: Tensor, start: int) -> tuple[list[bool], float]:
    """Return whether the full model would choose each token from `start` on, and their total surprisal in nats."""
    with lm.lock:  # otherwise hooks that another thread attaches would run in this pass
        logits = lm.hf(ids, **cache_argument(lm)).logits[0, start - 1 : -1].float()
    loss = torch.nn.functional.cross_entropy(logits, ids[0, start:], reduction="sum")
    return (logits.argmax(-1) == ids[0, start:]).tolist(), float(loss)

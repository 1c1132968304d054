"""A promise about text that the exits themselves have written."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unembed.control.early_exit.generation import generate
from unembed.control.early_exit.protocols import Exit
from unembed.models.decoder import Decoder


@torch.no_grad()
def generation_threshold(
    rule: Exit,
    prompts: Sequence[str],
    disagreement: float,
    thresholds: Sequence[float],
    *,
    max_new_tokens: int = 40,
) -> float:
    """The lowest threshold whose generations are promised to disagree with the full model in at most this share.

    A promise on prefixes of text says nothing about text that the exits themselves have written. Here each prompt is
    generated under each threshold, from careful to fast, and its loss is the share of its new tokens that the full
    model would not have chosen after the same text; conformal risk control then runs over prompts.

    Args:
        rule: the score; its own thresholds do not matter.
        prompts: texts like those to be continued; at least 1 / disagreement of them.
        disagreement: largest expected share.
        thresholds: to try; they are taken from the highest down.
        max_new_tokens: length of the continuations.

    Returns:
        A threshold; infinity (never leave) where not even the most careful keeps the promise.

    Source: Angelopoulos et al. 2022, Theorem 1.
    """
    lm = rule.lm
    worst = [0.0] * len(prompts)
    chosen = float("inf")
    for threshold in sorted(thresholds, reverse=True):
        careful = rule.at(threshold)
        for i, prompt in enumerate(prompts):
            made = generate(careful, prompt, max_new_tokens=max_new_tokens, min_new_tokens=max_new_tokens)
            right, _ = score_continuation(lm, made.ids, made.start)
            worst[i] = max(worst[i], 1 - sum(right) / max(len(right), 1))
        if (sum(worst) + 1) / (len(prompts) + 1) > disagreement:
            break
        chosen = float(threshold)
    return chosen


def score_continuation(lm: Decoder, ids: Tensor, start: int) -> tuple[list[bool], float]:
    """From column `start` on: whether the full model would have chosen each token, and their surprise in nats."""
    logits = lm.hf(ids, use_cache=False).logits[0, start - 1 : -1].float()
    loss = torch.nn.functional.cross_entropy(logits, ids[0, start:], reduction="sum")
    return (logits.argmax(-1) == ids[0, start:]).tolist(), float(loss)

"""Risk control over generations."""

from __future__ import annotations

import numpy as np
import pytest

from unembed import early_exit
from unembed.early_exit.baselines import Confidence
from unembed.early_exit.conformal import generation_threshold
from unembed.early_exit.rule import ExitRule
from unembed.errors import InvalidInput

TEXTS = [f"The old king of {place} said that he was happy. Then he went home." for place in ("Spain", "France", "Rome")]


def test_the_threshold_for_generation_is_risk_control_over_prompts(wren):
    rule = ExitRule(wren, Confidence("margin"), np.full(5, 2.0), "")
    prompts = ["The old king", "Once upon a time", "In the year"]
    thresholds, level = [0.9, 0.5, 0.0], 0.6
    losses = {}
    for threshold in thresholds:
        for prompt in prompts:
            ids = wren.encode(rule.at(threshold).generate(prompt, max_new_tokens=6, min_new_tokens=6).text)
            start = wren.encode(prompt).shape[1]
            chosen = wren.run(ids).logits[0, start - 1 : -1].argmax(-1)
            losses[threshold, prompt] = 1 - float((chosen == ids[0, start:]).float().mean())
    good = float("inf")
    for k, threshold in enumerate(thresholds):
        worst = [max(losses[t, p] for t in thresholds[: k + 1]) for p in prompts]
        if (sum(worst) + 1) / 4 > level:
            break
        good = threshold
    assert generation_threshold(rule, prompts, level, thresholds, max_new_tokens=6) == good
    with pytest.raises(InvalidInput, match="more prompts"):
        rule.with_generation_risk_control(prompts, early_exit.examples(wren, TEXTS, 3), 0.1)

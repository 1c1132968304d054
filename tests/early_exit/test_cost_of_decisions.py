"""The cost of decisions, and the layers where they pay."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from unembed import early_exit
from unembed.early_exit.baselines import Confidence
from unembed.early_exit.cost_of_decisions import profitable_thresholds
from unembed.early_exit.rule import ExitRule
from unembed.early_exit.sub_updates_rule import SubUpdates
from unembed.errors import InvalidInput


def test_decisions_are_made_only_at_layers_where_they_pay():
    scores = np.random.default_rng(0).normal(size=(300, 5))
    thresholds = np.array([1.5, -1.0, np.inf, 2.5, 0.5])

    def worth(chosen, decision):
        total = 0.0
        for row in scores:
            for n, threshold in enumerate(chosen):
                if threshold == np.inf:
                    continue
                total -= decision
                if row[n] > threshold:
                    total += 5 - n
                    break
        return total / len(scores)

    for decision, deciding in ((0.0, {0, 1, 4}), (0.1, {1, 4}), (0.9, {1})):
        found = profitable_thresholds(scores, thresholds, decision)
        assert set(np.flatnonzero(found < np.inf).tolist()) == deciding
        decided = np.array(list(itertools.product((False, True), repeat=5)))
        best = max(worth(np.where(k, thresholds, np.inf), decision) for k in decided)
        assert worth(found, decision) == pytest.approx(best)
    assert (profitable_thresholds(scores, np.full(5, 9.0), 0.1) == np.inf).all()


def test_no_score_is_computed_at_a_layer_without_a_decision(deep, found):
    rule = early_exit.fit(deep, found[:160], "sub_updates", clusters=8, decision=0.0).at_profitable_layers(
        found[160:], 0.15
    )
    deciding = set(np.flatnonzero(rule.thresholds < np.inf).tolist())
    assert 0 < len(deciding) < 4 and rule.calibration.endswith(
        "decisions after layers " + ", ".join(map(str, sorted(deciding)))
    )

    class Listening(SubUpdates):
        def is_above(self, threshold, lm, layer, seen):
            layers.add(layer)
            return super().is_above(threshold, lm, layer, seen)

    layers: set[int] = set()
    score = Listening(rule.score.labels, rule.score.train, rule.score.saturation)
    for thresholds in (rule.thresholds, np.array([np.inf, np.inf, 99.0, np.inf])):
        layers.clear()
        with torch.no_grad(), early_exit.skip_layers(ExitRule(deep, score, thresholds, "")):
            cache = deep.hf(torch.arange(3, 7)[None], use_cache=True).past_key_values
            deep.hf(torch.tensor([[9]]), past_key_values=cache, use_cache=True)
        assert layers <= set(np.flatnonzero(thresholds < np.inf).tolist())
    assert layers == {2}
    with pytest.raises(InvalidInput, match="must not be negative"):
        rule.at_profitable_layers(found, -2.0)


def test_the_cost_of_a_decision_is_in_blocks(wren):
    now = 0.0

    class Slow(Confidence):
        def is_above(self, threshold, lm, layer, seen):
            nonlocal now
            now += 0.5
            return True

    def block(_module, _args):
        nonlocal now
        now += 2.0

    hooks = [b.module.register_forward_pre_hook(block) for b in wren.structure.blocks]
    rule = ExitRule(wren, Slow("margin"), np.array([0.1, np.inf, *[0.1] * (wren.n_layers - 3)]), "")
    try:
        cost = early_exit.decision_cost(rule, "The old king", rounds=1, clock=lambda: now)
    finally:
        for hook in hooks:
            hook.remove()
    assert cost == pytest.approx(0.25)

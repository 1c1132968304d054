"""Thresholds, against brute force and the bound that they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import f1_score, precision_score

from unembed.early_exit import thresholds as threshold_choice
from unembed.errors import InvalidInput


def test_thresholds_by_precision_and_by_f1_are_brute_force():
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(80, 3)).round(1)
    saturation = generator.integers(0, 4, size=80)
    by_precision, by_f1 = (
        threshold_choice.by_precision(scores, saturation, 0.4),
        threshold_choice.by_f1(scores, saturation),
    )
    for layer in range(3):
        y = saturation == layer
        values = np.unique(scores[:, layer])
        precisions = [precision_score(y, scores[:, layer] >= t) for t in values]
        good = [t for t, p in zip(values, precisions, strict=True) if p >= 0.4]
        if good:
            assert by_precision[layer] == pytest.approx(good[0]) and by_precision[layer] < good[0]
        else:
            assert by_precision[layer] == math.inf
        f1 = [f1_score(y, scores[:, layer] >= t) for t in values]
        assert f1_score(y, scores[:, layer] > by_f1[layer]) == pytest.approx(max(f1))


def test_the_threshold_is_that_of_conformal_risk_control():
    generator = np.random.default_rng(1)
    scores = generator.normal(size=(60, 3))
    top = generator.integers(0, 2, size=(60, 4))
    level = 0.3
    chosen = threshold_choice.risk_controlled_threshold(scores, top, level)
    every = np.r_[np.inf, np.unique(scores)[::-1], scores.min() - 1]

    def loss(threshold):
        return top[np.arange(60), threshold_choice.exit_layers(scores, np.full(3, threshold))] != top[:, -1]

    good = []
    for k in range(len(every)):
        worst = np.any([loss(t) for t in every[: k + 1]], axis=0)
        if (worst.sum() + 1) / 61 > level:
            break
        good.append(every[k])
    assert chosen == pytest.approx(good[-1])
    with pytest.raises(InvalidInput):
        threshold_choice.risk_controlled_threshold(scores, top, 1.0)


def test_the_bound_holds_on_unseen_text():
    """The mean disagreement of many draws keeps below the level; four standard errors are allowed."""
    generator = np.random.default_rng(2)
    rates = []
    for _ in range(150):
        score = generator.uniform(size=(300, 2))
        wrong = generator.uniform(size=(300, 2)) > score
        top = np.c_[np.where(wrong, 1, 0), np.zeros(300, dtype=int)]
        threshold = threshold_choice.risk_controlled_threshold(score[:150], top[:150], 0.1)
        exits = threshold_choice.exit_layers(score[150:], np.full(2, threshold))
        rates.append((~threshold_choice.agrees(top[150:], exits)).mean())
    assert np.mean(rates) <= 0.1 + 4 * np.std(rates) / len(rates) ** 0.5
    assert np.mean(rates) > 0.05  # and the bound does not hold merely because no token exits

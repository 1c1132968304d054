"""The input score against counting every position, and every pair of a large drawn sample."""

from __future__ import annotations

import numpy as np
import pytest

from unembed.atlas.input_score import area_under, input_score

RNG = np.random.default_rng(5)


def test_the_accuracy_is_that_of_counting_positions() -> None:
    n = 400
    holds, inside = RNG.random(n) < 0.3, RNG.random(n) < 0.5
    firings = RNG.permutation(np.flatnonzero(inside))[:40]
    others = RNG.permutation(np.flatnonzero(inside))[:30].reshape(3, 10).copy()
    others[0, 7:] = -1
    score = input_score(holds, inside, firings, np.ones(40), others)
    assert score is not None

    def accuracy(at: np.ndarray) -> float:
        fires = np.isin(np.arange(n), at)
        return float(holds[at].mean() + (~holds)[inside & ~fires].mean()) / 2

    assert score.accuracy == pytest.approx(accuracy(firings), abs=1e-12)
    assert score.control == pytest.approx(max(accuracy(row[row >= 0]) for row in others), abs=1e-12)
    assert score.firings == 40


def test_the_area_is_the_share_of_ordered_pairs() -> None:
    at = RNG.random(25) < 0.7
    coefficients = RNG.integers(1, 9, 25).astype(float)
    base, copies = 0.2, 200
    quiet = np.arange(25 * copies) < base * 25 * copies  # as many other positions as firings, 200 times
    rule = np.concatenate([np.repeat(at, copies), quiet])
    size = np.concatenate([np.repeat(coefficients, copies), np.zeros(len(quiet))])
    true, false = size[rule], size[~rule]
    pairs = (true[:, None] > false).mean() + 0.5 * (true[:, None] == false).mean()
    assert area_under(at, coefficients, base) == pytest.approx(pairs, abs=1e-12)


def test_a_rule_that_is_true_everywhere_tells_nothing() -> None:
    assert area_under(np.ones(3, dtype=bool), np.ones(3), 1.0) == 0.5


def test_without_firings_there_is_no_score() -> None:
    empty = np.zeros(0, dtype=np.int64)
    assert input_score(np.ones(4, bool), np.ones(4, bool), empty, np.zeros(0), np.zeros((1, 2), np.int64)) is None

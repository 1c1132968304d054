"""The bound of a control lets through one in twenty exchangeable scores, however many controls there are."""

from __future__ import annotations

import numpy as np
import pytest

from unembed.atlas.controls import bounds


@pytest.mark.parametrize("n", [19, 20, 57, 400])
def test_one_in_twenty_exceeds_the_bound_of_scores_like_it(n: int) -> None:
    draws = np.random.default_rng(0).random((20_000, n + 1))
    found = bounds(draws[:, 1:], np.ones((20_000, n), dtype=bool))
    share = (draws[:, 0] > found).mean()
    expected = 1 - np.ceil(0.95 * (n + 1) - 1e-9) / (n + 1)  # the least rank above 95 %, of n + 1
    assert share == pytest.approx(expected, abs=0.005)  # three standard deviations
    assert expected <= 0.05 + 1e-12


def test_the_bound_is_a_rank_of_the_counted_scores() -> None:
    rng = np.random.default_rng(1)
    scores, counted = rng.random((30, 60)), rng.random((30, 60)) < 0.7
    for row, found in enumerate(bounds(scores, counted)):
        own = sorted(scores[row, counted[row]])
        assert found == own[int(np.ceil(0.95 * (len(own) + 1) - 1e-9)) - 1]


@pytest.mark.parametrize("n", [0, 1, 18])
def test_too_few_controls_let_nothing_pass(n: int) -> None:
    assert np.isinf(bounds(np.ones((2, n)), np.ones((2, n), dtype=bool))).all()
    assert np.isinf(bounds(np.ones((2, 40)), np.arange(40)[None] < np.array([[n], [n]]))).all()

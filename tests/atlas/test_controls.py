"""The bound of a control lets through one in twenty exchangeable scores, however many controls there are."""

from __future__ import annotations

import numpy as np
import pytest

from unembed.atlas.controls import bounds, chances, chosen


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


def test_p_values_are_ranks_and_those_of_exchangeable_scores_are_uniform() -> None:
    draws = np.random.default_rng(2).random((20_000, 100))
    found = chances(draws[:, 0], draws[:, 1:], np.ones((20_000, 99), dtype=bool))
    for level in (0.01, 0.05, 0.3):
        assert (found <= level + 1e-12).mean() == pytest.approx(level, abs=3 * np.sqrt(level / 20_000))
    tied = chances(np.array([1.0, 1.0]), np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([[True, True], [False, True]]))
    assert tied.tolist() == pytest.approx([2 / 3, 1 / 2])


def test_the_share_of_false_ones_among_the_chosen_is_the_one_given() -> None:
    rng = np.random.default_rng(3)
    false = []
    for _ in range(300):
        chance = np.concatenate([rng.random(150), rng.random(50) * 0.004])
        taken = chosen(chance, 0.1)
        assert set(range(150, 200)) <= {*taken.tolist()}
        false.append((taken < 150).mean())
    assert np.mean(false) == pytest.approx(0.1 * 150 / 200, abs=0.01)  # Benjamini and Hochberg 1995, theorem 1
    assert len(chosen(np.array([0.3, 0.5, 0.9]))) == 0
    assert len(chosen(np.zeros(0))) == 0

"""Intervals against SciPy, over drawn units, and the cases where resampling says nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from unembed.document.intervals import (
    columns,
    difference_of,
    mean_of,
    paired_difference,
    rank_correlation,
    ratio_of,
    share_of,
)


@pytest.mark.parametrize("hits", [0, 1, 37, 400])
def test_the_interval_of_a_share_is_the_exact_binomial_one(hits: int) -> None:
    m = share_of(hits, 400)
    exact = stats.binomtest(hits, 400).proportion_ci(0.95, method="exact")
    assert (m.value, m.low, m.high, m.n) == (hits / 400, exact.low, exact.high, 400)


def test_ten_of_ten_is_not_certainty() -> None:
    for m in (share_of(0, 10), mean_of([0.0] * 10, share=True), mean_of([0.0] * 60, units=[0, 1] * 30, share=True)):
        assert m.low == 0 and m.high > 0.3
    assert mean_of([1.0] * 10, share=True).low < 0.7


def test_ratios_and_differences_of_shares_that_are_all_zero_reach_the_exact_bounds() -> None:
    none, some, bound = [0.0] * 10, [0.2] * 60, 1 - 0.025 ** (1 / 10)
    assert bound == pytest.approx(stats.binomtest(0, 10).proportion_ci(0.95, method="exact").high)
    ratio, difference = ratio_of(none, some, share=True), difference_of(some, none, share=True)
    assert ratio.value == 0.0 and ratio.high == pytest.approx(bound / 0.2, rel=0.1)
    assert difference.value == pytest.approx(0.2) and difference.low == pytest.approx(0.2 - bound, rel=0.2)
    rare = [1 / 30, *[0.0] * 59]
    against_none = ratio_of(rare, none, share=True)  # a few tokens of 60 vectors, and none of ten others
    assert math.isinf(against_none.value) and against_none.low < 1.5
    assert ratio_of([1.0] * 10, [1.0] * 10, share=True).low < 0.8


def test_the_interval_of_a_mean_is_that_of_scipys_bootstrap() -> None:
    x = np.random.default_rng(0).exponential(size=300)
    m = mean_of(x, seed=1)
    theirs = stats.bootstrap((x,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(2))
    assert m.value == pytest.approx(x.mean(), abs=1e-12)
    assert (m.low, m.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.015)
    assert m == mean_of(x, seed=1) and m != mean_of(x, seed=2)


def test_values_of_one_drawn_unit_are_resampled_together() -> None:
    by_unit = np.random.default_rng(0).normal(size=50)
    values, units = np.repeat(by_unit, 40), np.repeat(np.arange(50), 40)
    alone, together = mean_of(values), mean_of(values, units=units)
    assert together.value == alone.value and together.n == 2000
    as_units = mean_of(by_unit)
    assert (together.low, together.high) == pytest.approx((as_units.low, as_units.high))
    assert together.high - together.low > 4 * (alone.high - alone.low), "forty copies are one draw"


def test_units_of_different_sizes_weigh_as_many_values_as_they_have() -> None:
    values, units = [0.0, 0.0, 0.0, 1.0], [0, 0, 0, 1]
    m = mean_of(values, units=units)
    assert m.value == 0.25 and (m.low, m.high) == (0.0, 1.0)


def test_differences_and_ratios_of_two_samples() -> None:
    random = np.random.default_rng(3)
    a, b = random.normal(5, 1, 400), random.normal(2, 1, 300)
    difference, ratio = difference_of(a, b), ratio_of(a, b)
    assert difference.value == pytest.approx(a.mean() - b.mean()) and ratio.value == pytest.approx(a.mean() / b.mean())
    error = 1.96 * math.hypot(a.std() / 400**0.5, b.std() / 300**0.5)
    assert (difference.high - difference.low) / 2 == pytest.approx(error, rel=0.1)
    assert ratio.low < 2.5 < ratio.high or abs(ratio.value - 2.5) < 0.2
    paired = paired_difference(a, a + 1)
    assert (paired.low, paired.high) == pytest.approx((-1, -1))
    assert math.isinf(ratio_of([1.0, 2.0], [0.0, 0.0]).value)
    assert math.isnan(difference_of([], [1.0]).value)


def test_a_rank_correlation_is_scipys_and_opens_where_there_is_too_little() -> None:
    random = np.random.default_rng(0)
    x = random.integers(0, 6, 300).astype(float)
    y = x + random.normal(0, 2, 300)
    m = rank_correlation(x, y)
    assert m.value == pytest.approx(float(stats.spearmanr(x, y)[0]), abs=1e-9)
    assert m.low < m.value < m.high < 1 and m.low > 0
    assert math.isnan(rank_correlation(x[:9], y[:9]).value) and math.isnan(rank_correlation(x * 0, y).low)


def test_missing_values_are_left_out_of_intervals() -> None:
    m = mean_of([1.0, 2.0, float("nan"), 9.0])
    assert (m.value, m.n) == (4.0, 3) and 1.0 <= m.low <= m.high <= 9.0
    assert math.isnan(mean_of([]).value) and mean_of([]).n == 0
    assert math.isnan(share_of(0, 0).value)


def test_columns_for_a_table() -> None:
    made = columns("x", [replace(share_of(1, 2), published=0.4), share_of(1, 2)])
    assert list(made) == ["x", "x_low", "x_high", "x_n", "x_published"]
    assert made["x_published"] == [0.4, None]
    assert "x_published" not in columns("x", [share_of(1, 2)])


def test_a_weighted_mean_counts_values_by_their_weights() -> None:
    values, weights = [0.1, 0.9, float("nan"), 0.5, 0.4], [8.0, 1.0, 5.0, 2.0, 4.0]
    m = mean_of(values, weights=weights, seed=3)
    assert m.value == pytest.approx((0.8 + 0.9 + 1.0 + 1.6) / 15) and m.n == 4
    assert m.low < m.value < m.high
    generator = np.random.default_rng(1)
    values, weights = generator.normal(size=400), generator.integers(1, 4, 400)
    equal, m = mean_of(values), mean_of(values, weights=weights)
    assert m.value == pytest.approx(float(np.average(values, weights=weights)))
    assert m.high - m.low == pytest.approx(equal.high - equal.low, rel=0.25)
    assert mean_of(values, weights=np.ones(400)) == equal

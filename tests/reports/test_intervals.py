"""Intervals against SciPy, and the cases where resampling says nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from unembed.reports.document.intervals import columns, mean_of, median_of, share_of


def test_the_interval_of_a_share_is_the_binomial_one() -> None:
    m = share_of(37, 400)
    assert m.value == 37 / 400 and m.n == 400
    exact = stats.binom(400, 37 / 400).ppf([0.025, 0.975]) / 400
    assert [m.low, m.high] == pytest.approx(list(exact), abs=0.004)


@pytest.mark.parametrize("hits", [0, 50])
def test_none_and_all_still_have_an_interval(hits: int) -> None:
    m = share_of(hits, 50)
    exact = stats.binomtest(hits, 50).proportion_ci(0.95, method="exact")
    assert (m.low, m.high) == pytest.approx((exact.low, exact.high), abs=1e-12)


def test_the_interval_of_a_mean_is_that_of_scipys_bootstrap() -> None:
    x = np.random.default_rng(0).exponential(size=300)
    m = mean_of(x, seed=1)
    theirs = stats.bootstrap((x,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(2))
    assert m.value == pytest.approx(x.mean(), abs=1e-12)
    assert (m.low, m.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.015)
    assert m == mean_of(x, seed=1) and m != mean_of(x, seed=2)


def test_medians_and_missing_units() -> None:
    m = median_of([1.0, 2.0, float("nan"), 9.0])
    assert (m.value, m.n) == (2.0, 3) and 1.0 <= m.low <= m.high <= 9.0
    assert math.isnan(mean_of([]).value) and mean_of([]).n == 0
    assert math.isnan(share_of(0, 0).value)


def test_columns_for_a_table() -> None:
    made = columns("x", [share_of(1, 2, published=0.4), share_of(1, 2)])
    assert list(made) == ["x", "x_low", "x_high", "x_n", "x_published"]
    assert made["x_published"] == [0.4, None]
    assert "x_published" not in columns("x", [share_of(1, 2)])

"""Confidence intervals of measured numbers: bootstrap over sampling units, and exact intervals for shares.

The bootstrap resamples the units that were drawn at random, because only these are independent: for example texts (with
the values of all layers) or memories (with all texts on which they fire). The argument `units` gives the number of the
unit that each value belongs to. Every function takes a seed, so that results can be reproduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

DRAWS = 1000
"""Number of bootstrap resamples for an interval."""
LEVEL = 0.95
"""Confidence level of every interval."""

Values = Sequence[int | float] | np.ndarray


@dataclass(frozen=True)
class Measured:
    """A measured number with its confidence interval.

    Attributes:
        value: the number; NaN if it could not be measured.
        low: lower end of the 95 % interval.
        high: upper end of the 95 % interval.
        n: number of values that it was computed from.
        published: the paper's number in the same unit; None if the paper has none.
    """

    value: float
    low: float
    high: float
    n: int
    published: int | float | None = None


NOTHING = Measured(float("nan"), float("nan"), float("nan"), 0)


def share_of(hits: int, n: int) -> Measured:
    """Return the share hits / n of independent draws, with its exact (Clopper-Pearson) confidence interval."""
    if n == 0:
        return NOTHING
    from scipy.stats import binomtest  # the import takes 0.4 seconds, so it is not made earlier

    bounds = binomtest(hits, n).proportion_ci(LEVEL, method="exact")
    return Measured(hits / n, float(bounds.low), float(bounds.high), n)


def mean_of(
    values: Values,
    *,
    units: Values | None = None,
    seed: int = 0,
    share: bool = False,
    weights: Values | None = None,
    draws: int = DRAWS,
) -> Measured:
    """Return the mean with a percentile-bootstrap interval over sampling units; NaN values are left out.

    Args:
        units: the sampling unit of each value; with None, every value is a separate unit.
        seed: the seed of the bootstrap.
        share: True for shares, or counts that are rarely above 1. If all values are 0, or all are 1, every resample has
            the same mean, so the exact interval for that number of units is returned.
        weights: the weights of the values, each of which is then a separate unit; equal weights when None.
        draws: number of resamples.
    """
    sample = _Sample.of(values, units) if weights is None else _Sample.weighted(values, weights)
    if sample.n == 0:
        return NOTHING
    value = float(sample.values.mean() if weights is None else sample.sums.sum() / sample.counts.sum())
    if share and sample.is_extreme:
        bounds = share_of(int(value) * len(sample.counts), len(sample.counts))
        return Measured(value, bounds.low, bounds.high, sample.n)
    low, high = _ends(sample.drawn(seed, draws=draws))
    return Measured(value, low, high, sample.n)


def difference_of(
    a: Values, b: Values, *, units_a: Values | None = None, seed: int = 0, share: bool = False
) -> Measured:
    """Return the mean of `a` minus the mean of `b`; both are resampled. The arguments are those of `mean_of`."""
    return _compare(a, b, units_a, None, seed, np.subtract, share)


def ratio_of(
    a: Values,
    b: Values,
    *,
    units_a: Values | None = None,
    units_b: Values | None = None,
    seed: int = 0,
    share: bool = False,
) -> Measured:
    """Return the mean of `a` divided by the mean of `b`; both are resampled. Infinite if `b` has mean 0.

    The other arguments are those of `mean_of`. With `share=True`, the interval is not [0, 0] even if all values of `a`
    are 0.
    """
    return _compare(a, b, units_a, units_b, seed, np.divide, share)


def paired_difference(a: Values, b: Values, *, seed: int = 0) -> Measured:
    """Return the mean of the differences a - b of paired values, with a bootstrap over the pairs."""
    return mean_of(np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64), seed=seed)


def _compare(
    a: Values, b: Values, units_a: Values | None, units_b: Values | None, seed: int, of: np.ufunc, share: bool
) -> Measured:
    one, other = _Sample.of(a, units_a), _Sample.of(b, units_b)
    if not one.n or not other.n:
        return NOTHING
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(of(one.values.mean(), other.values.mean()))
        low, high = _ends(of(one.drawn(seed, share), other.drawn(seed + 1, share)))
    return Measured(value, low, high, one.n + other.n)


@dataclass(frozen=True, eq=False)
class _Sample:
    """Values, and for each sampling unit the sum and the number of its values (or the weighted sum and the weight)."""

    values: np.ndarray
    sums: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, values: Values, units: Values | None) -> _Sample:
        given = np.asarray(values, dtype=np.float64).ravel()
        known = ~np.isnan(given)
        if units is None:
            return cls(given[known], given[known], np.ones(int(known.sum())))
        _, number = np.unique(np.asarray(units).ravel()[known], return_inverse=True)
        return cls(given[known], np.bincount(number, weights=given[known]), np.bincount(number).astype(np.float64))

    @classmethod
    def weighted(cls, values: Values, weights: Values) -> _Sample:
        given, by = (np.asarray(x, dtype=np.float64).ravel() for x in (values, weights))
        known = ~np.isnan(given)
        return cls(given[known], (given * by)[known], by[known])

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def is_extreme(self) -> bool:
        """True if all values are 0, or all are 1."""
        return bool(self.values.min() == self.values.max()) and float(self.values[0]) in (0.0, 1.0)

    def drawn(self, seed: int, share: bool = False, draws: int = DRAWS) -> np.ndarray:
        """Return the mean of each of `draws` resamples of the units, with about 2**22 numbers in memory at a time.

        If `share` is True and all values are 0 or all are 1, resamples would all have the same mean. The means are then
        drawn from a Beta distribution whose quantiles are the ends of the exact interval.
        """
        n, random = len(self.counts), np.random.default_rng(seed)
        if share and self.is_extreme:
            return np.abs(self.values[0] - random.beta(1, n, draws))
        at_once = max(1, 2**22 // n)
        sizes = [min(at_once, draws - start) for start in range(0, draws, at_once)]
        rows = (random.integers(0, n, (size, n)) for size in sizes)
        return np.concatenate([self.sums[r].sum(axis=1) / self.counts[r].sum(axis=1) for r in rows])


def _ends(drawn: np.ndarray) -> tuple[float, float]:
    tail = (1 - LEVEL) / 2
    known = drawn[~np.isnan(drawn)]
    if not len(known):
        return float("nan"), float("nan")
    # A quantile is usually interpolated between two neighbouring values. If some resampled ratios are infinite, one of
    # the two values is taken instead, because interpolation between a finite and an infinite value gives infinity.
    low, high = np.quantile(known, (tail, 1 - tail), method="inverted_cdf" if np.isinf(known).any() else "linear")
    return float(low), float(high)


def columns(name: str, numbers: Sequence[Measured]) -> dict[str, list[Any]]:
    """Return table columns NAME, NAME_low, NAME_high, NAME_n and, if there are published numbers, NAME_published.

    A report's page shows the first three in one cell, and the published number in the next.
    """
    found: dict[str, list[Any]] = {
        name: [m.value for m in numbers],
        f"{name}_low": [m.low for m in numbers],
        f"{name}_high": [m.high for m in numbers],
        f"{name}_n": [m.n for m in numbers],
    }
    if any(m.published is not None for m in numbers):
        found[f"{name}_published"] = [m.published for m in numbers]
    return found


def rank_correlation(x: Float[np.ndarray, " pair"], y: Float[np.ndarray, " pair"], *, seed: int = 0) -> Measured:
    """Return Spearman's rank correlation with a bootstrap over pairs; NaN for fewer than 10 pairs or for constants."""
    known = ~(np.isnan(x) | np.isnan(y))
    x, y = x[known], y[known]
    if len(x) < 10 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Measured(float("nan"), float("nan"), float("nan"), len(x))
    from scipy.stats import rankdata

    a, b = rankdata(x), rankdata(y)
    a, b = (a - a.mean()) / a.std(), (b - b.mean()) / b.std()
    whole = mean_of(a * b, seed=seed)
    return Measured(whole.value, max(whole.low, -1.0), min(whole.high, 1.0), len(x))

"""A measured number with its interval: bootstrap over the units that were drawn at random.

Resample what was sampled: examples where examples were drawn, keys where keys were drawn (their triggers are no
independent draws). Every function takes a seed, so that a report made twice is the same report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

DRAWS = 1000
"""Resamples behind every interval."""


@dataclass(frozen=True)
class Measured:
    """One number as measured.

    Attributes:
        value: the number; NaN where nothing could be measured.
        low: lower end of its 95 % interval.
        high: upper end.
        n: units it was measured on.
        published: the paper's number in the same unit; None where there is none.
    """

    value: float
    low: float
    high: float
    n: int
    published: int | float | None = None


NOTHING = Measured(float("nan"), float("nan"), float("nan"), 0)


def share_of(
    hits: int, n: int, *, seed: int = 0, published: int | float | None = None, level: float = 0.95
) -> Measured:
    """The share hits / n, with the interval of the percentile bootstrap.

    The sum of n resampled zeros and ones is binomial, so it is drawn as such. Where all or none are hits, resampling
    never shows anything else; there the exact (Clopper-Pearson) bound stands in.
    """
    if n == 0:
        return Measured(float("nan"), float("nan"), float("nan"), 0, published)
    p, tail = hits / n, (1 - level) / 2
    if hits in (0, n):
        bound = tail ** (1 / n)
        low, high = (0.0, 1 - bound) if hits == 0 else (bound, 1.0)
        return Measured(p, low, high, n, published)
    sums = np.random.default_rng(seed).binomial(n, p, DRAWS) / n
    low, high = np.quantile(sums, (tail, 1 - tail))
    return Measured(p, float(low), float(high), n, published)


def mean_of(
    values: Sequence[int | float] | np.ndarray,
    *,
    seed: int = 0,
    published: int | float | None = None,
    level: float = 0.95,
) -> Measured:
    """The mean of independent units, with the interval of the percentile bootstrap; NaN units are left out."""
    return statistic_of(values, "mean", seed=seed, published=published, level=level)


def median_of(
    values: Sequence[int | float] | np.ndarray,
    *,
    seed: int = 0,
    published: int | float | None = None,
    level: float = 0.95,
) -> Measured:
    """The median of independent units, with the interval of the percentile bootstrap; NaN units are left out."""
    return statistic_of(values, "median", seed=seed, published=published, level=level)


def statistic_of(
    values: Sequence[int | float] | np.ndarray,
    statistic: str,
    *,
    seed: int = 0,
    published: int | float | None = None,
    level: float = 0.95,
) -> Measured:
    """The "mean" or "median" of independent units with its bootstrap interval.

    Memory: 2**22 resampled values at a time.
    """
    found = np.asarray(values, dtype=np.float64)
    found = found[~np.isnan(found)]
    n = len(found)
    if n == 0:
        return Measured(float("nan"), float("nan"), float("nan"), 0, published)
    reduce = {"mean": np.mean, "median": np.median}[statistic]
    random, at_once = np.random.default_rng(seed), max(1, 2**22 // n)
    drawn = [
        reduce(found[random.integers(0, n, (min(at_once, DRAWS - start), n))], axis=1)
        for start in range(0, DRAWS, at_once)
    ]
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(drawn), (tail, 1 - tail))
    return Measured(float(reduce(found)), float(low), float(high), n, published)


def columns(name: str, numbers: Sequence[Measured]) -> dict[str, list[Any]]:
    """Columns `name`, `name_low`, `name_high`, `name_n` and, where any is known, `name_published`, for a table.

    A report's page shows the first three in one cell, and the published number beside it.
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

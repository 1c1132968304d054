"""How far estimates of effects agree with exact effects, and what they may have missed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

CONFIDENCE = 0.95


class Agreement(NamedTuple):
    """The correlation of estimated and exact effects over some parts; NaN where it is not defined.

    Attributes:
        parts: which, in words.
        number: how many.
        estimate: "gradient" or "relevance".
        pearson: correlation of the effects themselves, which the largest decide.
        spearman: correlation of their ranks.
    """

    parts: str
    number: int
    estimate: str
    pearson: float
    spearman: float


class Unmeasured(NamedTuple):
    """What is known of the memories without an exact effect, from some that were drawn at random from them.

    Attributes:
        number: memories outside those of large estimates.
        drawn: how many of them were replaced for real.
        largest: the largest size of an exact effect among these.
        label: whose it is.
        share: at most this share of `number` has a larger effect, at a confidence of 95 %.
    """

    number: int
    drawn: int
    largest: float
    label: str
    share: float

    def in_words(self) -> str:
        """Say in one sentence what may have been missed."""
        return (
            f"{self.drawn} of the other {self.number:,} memories were drawn at random and replaced too: the largest "
            f"effect is {self.largest:.3g} ({self.label}). At most {self.share:.1%} of them have a larger one "
            f"({CONFIDENCE:.0%} confidence)."
        )


def agreement(parts: str, estimate: str, estimated: Sequence[float], exact: Sequence[float]) -> Agreement:
    """Correlate estimated with exact effects."""
    from scipy.stats import pearsonr, spearmanr  # 0.4 seconds: only where it is needed

    if min(len(set(estimated)), len(set(exact))) < 2:
        return Agreement(parts, len(exact), estimate, float("nan"), float("nan"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that differ by rounding alone
        size: Any = pearsonr(estimated, exact)
        rank: Any = spearmanr(estimated, exact)
    return Agreement(parts, len(exact), estimate, float(size.statistic), float(rank.statistic))


def share_above(drawn: int) -> float:
    """Return the largest share of a population that can exceed the largest of some drawn at random from it.

    If a share p exceeds it, the chance that none of n drawn does is at most (1 - p)^n; the p at which that is 5 % is
    returned. No distribution is assumed.
    """
    return 1.0 if drawn < 1 else 1.0 - (1.0 - CONFIDENCE) ** (1.0 / drawn)

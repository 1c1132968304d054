"""Compare estimated effects with exact ones, and bound the share of large effects that the estimates missed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from unembed.results import format_number, format_percent

CONFIDENCE = 0.95


class Agreement(NamedTuple):
    """The correlation of estimated with exact effects over some components; NaN where it is not defined.

    Attributes:
        parts: the components that are compared, as text.
        number: the number of these components.
        estimate: "gradient" or "relevance".
        pearson: correlation of the effects themselves, dominated by the largest ones.
        spearman: correlation of the effects' ranks.
    """

    parts: str
    number: int
    estimate: str
    pearson: float
    spearman: float


class Unmeasured(NamedTuple):
    """What a random sample shows about the memories (FFN neurons) whose exact effect was not computed.

    Attributes:
        number: the number of memories that are not among those with the largest estimates.
        drawn: the number of these that were drawn at random and replaced in the model.
        largest: the largest absolute value of an exact effect among those drawn.
        label: the name of the memory with that effect.
        share: with 95 % confidence, at most this share of the `number` memories has an effect larger than `largest`.
    """

    number: int
    drawn: int
    largest: float
    label: str
    share: float

    def in_words(self) -> str:
        """Return a sentence about the large effects that the estimates may have missed."""
        return (
            f"{self.drawn} of the other {self.number:,} memories were drawn at random and replaced too: the largest "
            f"effect is {format_number(self.largest)} ({self.label}). At most {format_percent(self.share, 1)} of them "
            f"have a larger one ({format_percent(CONFIDENCE, 0)} confidence)."
        )


def agreement(parts: str, estimate: str, estimated: Sequence[float], exact: Sequence[float]) -> Agreement:
    """Return the correlations of estimated with exact effects."""
    from scipy.stats import pearsonr, spearmanr  # imported here because it takes 0.4 seconds

    if min(len(set(estimated)), len(set(exact))) < 2:
        return Agreement(parts, len(exact), estimate, float("nan"), float("nan"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns if numbers differ only by rounding errors
        size: Any = pearsonr(estimated, exact)
        rank: Any = spearmanr(estimated, exact)
    return Agreement(parts, len(exact), estimate, float(size.statistic), float(rank.statistic))


def share_above(drawn: int) -> float:
    """Return an upper bound (95 % confidence) for the share of a population above the largest of a random sample.

    If a share p of the population lies above a value, all n members drawn lie below it with probability (1 - p)^n or
    less. The result is the p for which this probability is 5 %. No distribution is assumed.
    """
    return 1.0 if drawn < 1 else 1.0 - (1.0 - CONFIDENCE) ** (1.0 / drawn)

"""The control of both tests: a description passes where it exceeds 95 % of what chance does in its place.

Chance is a description that was drawn at random from those of the same layer. Only memories (FFN neurons) that are
described are drawn: one without a rule fires at positions that have little in common, so that every rule beats it, and
a control of such memories lets through far more than 5 % of random descriptions.

The bound is the score of rank `ceil(0.95 * (n + 1))` of n controls, counted from the lowest. Of n + 1 scores that are
exchangeable, at most 5 % exceed the bound that the others give (Vovk et al. 2005, section 2.2). Fewer than 19 controls
give none, and then nothing passes.

Where lines are chosen, many descriptions are tested at once, and 5 % of the false ones would be chosen. So as many are
chosen as keep the expected share of false ones at `FALSE` (Benjamini and Hochberg 1995).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

QUANTILE = 0.95
"""The quantile of the control that a description has to exceed."""
FALSE = 0.1
"""The expected share of chosen descriptions that are no better than their controls, on each side."""
CONTROLS = 400
"""Other memories, or descriptions of others, that the control has at most."""


def bounds(
    scores: Float[np.ndarray, "row control"], counted: Bool[np.ndarray, "row control"]
) -> Float[np.ndarray, " row"]:
    """Return for each row the score that a description has to exceed; infinite where the controls are too few.

    Args:
        scores: of the controls.
        counted: which of them are controls of the row: others than what the row is about.
    """
    if not scores.shape[1]:
        return np.full(len(scores), np.inf)
    ordered = np.sort(np.where(counted, scores, np.inf), axis=1)
    numbers = counted.sum(axis=1)
    # A small amount is taken off, because 0.95 * 20 is above 19 in floating point.
    ranks = np.ceil(QUANTILE * (numbers + 1) - 1e-9).astype(np.int64)
    found = np.take_along_axis(ordered, np.minimum(ranks - 1, scores.shape[1] - 1)[:, None], axis=1)[:, 0]
    return np.where(ranks <= numbers, found, np.inf)


def chances(
    own: Float[np.ndarray, " row"],
    scores: Float[np.ndarray, "row control"],
    counted: Bool[np.ndarray, "row control"],
) -> Float[np.ndarray, " row"]:
    """Return for each row the p-value of its score: the rank among it and its controls, from the highest; ties count.

    Args:
        own: the scores of the descriptions.
        scores: of the controls.
        counted: which of them are controls of the row.
    """
    reached = (counted & (scores >= own[:, None])).sum(axis=1)
    return (1 + reached) / (1 + counted.sum(axis=1))


def chosen(chance: Float[np.ndarray, " row"], share: float = FALSE) -> Int[np.ndarray, " chosen"]:
    """Return the numbers of the descriptions to choose, by their p-values: those of the lowest ones, in their order.

    The largest k is taken for which the k-th lowest p-value is at most `share * k / n` (Benjamini and Hochberg 1995).
    """
    order = np.argsort(chance, kind="stable")
    low = np.flatnonzero(chance[order] <= share * np.arange(1, len(chance) + 1) / max(1, len(chance)))
    return np.sort(order[: low[-1] + 1]) if len(low) else np.zeros(0, dtype=np.int64)

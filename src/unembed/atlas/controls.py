"""The control of the input and output tests: to pass, a score must exceed 95 % of the scores of random descriptions.

A random description is that of another memory (FFN neuron) of the same layer. Only memories that have a description
serve as controls. Memories without a rule do not, because their firings have little in common: a rule's scores on them
are so low that far more than 5 % of random descriptions would pass.

The bound is the score of rank `ceil(0.95 * (n + 1))` of the n control scores, counted from the lowest. If n + 1 scores
are exchangeable, the probability that one of them exceeds the bound computed from the others is at most 5 % (Vovk et
al. 2005, section 2.2). With fewer than 19 controls there is no bound, and no description passes.

When descriptions are selected, many are tested at once, so that this bound would select 5 % of the false descriptions.
The selection therefore limits the expected share of false descriptions among the selected ones to `FALSE` (Benjamini
and Hochberg 1995).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

QUANTILE = 0.95
"""The quantile of the control scores that a description has to exceed."""
FALSE = 0.1
"""False discovery rate: the largest expected share of selected descriptions that are no better than their controls."""
FEWEST = 19
"""Smallest number of control scores from which a bound can be computed."""
CONTROLS = 400
"""Largest number of control scores with which one score is compared."""


def bounds(
    scores: Float[np.ndarray, "row control"], counted: Bool[np.ndarray, "row control"]
) -> Float[np.ndarray, " row"]:
    """Return the score that each row's description has to exceed; infinity where there are fewer than 19 controls.

    Args:
        scores: the control scores.
        counted: True where a control score is a control for the row, because it belongs to another memory than the row.
    """
    if not scores.shape[1]:
        return np.full(len(scores), np.inf)
    ordered = np.sort(np.where(counted, scores, np.inf), axis=1)
    numbers = counted.sum(axis=1)
    # Rounding errors may put the product just above an integer, so that `ceil` would return the next one. Subtracting a
    # small amount prevents this.
    ranks = np.ceil(QUANTILE * (numbers + 1) - 1e-9).astype(np.int64)
    found = np.take_along_axis(ordered, np.minimum(ranks - 1, scores.shape[1] - 1)[:, None], axis=1)[:, 0]
    return np.where(ranks <= numbers, found, np.inf)


def chances(
    own: Float[np.ndarray, " row"],
    scores: Float[np.ndarray, "row control"],
    counted: Bool[np.ndarray, "row control"],
) -> Float[np.ndarray, " row"]:
    """Return the p-value of each row's score: the share of scores (the controls and this score) at least as high.

    Args:
        own: the score of each row's description.
        scores, counted: see `bounds`.
    """
    reached = (counted & (scores >= own[:, None])).sum(axis=1)
    return (1 + reached) / (1 + counted.sum(axis=1))


def chosen(chance: Float[np.ndarray, " row"], share: float = FALSE) -> Int[np.ndarray, " chosen"]:
    """Return the indices, in increasing order, of the descriptions that are significant at a false discovery rate.

    `chance` has one p-value for each of the n descriptions, and `share` is the rate. The k descriptions with the lowest
    p-values are significant, where k is the largest number for which the k-th lowest p-value is at most
    `share * k / n` (Benjamini and Hochberg 1995).
    """
    order = np.argsort(chance, kind="stable")
    low = np.flatnonzero(chance[order] <= share * np.arange(1, len(chance) + 1) / max(1, len(chance)))
    return np.sort(order[: low[-1] + 1]) if len(low) else np.zeros(0, dtype=np.int64)

"""Choose exit thresholds by precision or F1, as in the paper, or by conformal risk control.

Conformal risk control (Angelopoulos, Bates, Fisch, Lei, Schuster 2022, Theorem 1) bounds the disagreement, which is the
share of tokens that differ from the full model's. For new examples that are exchangeable with the calibration examples,
the expected disagreement is at most a given level. The theorem needs a loss that does not rise with the threshold.
Disagreement may rise, so the loss of a threshold is the largest disagreement at it or at any higher one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from unembed.errors import InvalidInput


def exit_layers(
    scores: Float[np.ndarray, "example layer"], thresholds: Float[np.ndarray, " layer"]
) -> Int[np.ndarray, " example"]:
    """Return the layer after which each example exits: the first whose score exceeds its threshold, else the last."""
    above = scores > thresholds
    return np.where(above.any(axis=1), above.argmax(axis=1), scores.shape[1])


def agrees(top: Int[np.ndarray, "example layers"], layer: Int[np.ndarray, " example"]) -> Bool[np.ndarray, " example"]:
    """Return, for each example, whether the top token at its exit layer is the model's final prediction."""
    return top[np.arange(len(top)), layer] == top[:, -1]


def candidate_thresholds(
    scores: Float[np.ndarray, "example layer"], most: int = 200
) -> Float[np.ndarray, " threshold"]:
    """Return thresholds to try, highest first: infinity (never exit early) and quantiles of the finite scores."""
    finite = np.unique(scores[np.isfinite(scores)])
    if len(finite) > most:
        finite = np.unique(np.quantile(finite, np.linspace(0, 1, most)))
    low = [finite[0] - 1] if len(finite) else []
    return np.concatenate([[np.inf], finite[::-1], low])


def risk_controlled_threshold(
    scores: Float[np.ndarray, "example layer"], top: Int[np.ndarray, "example layers"], level: float
) -> float:
    """Return the lowest threshold at which the expected disagreement is at most `level`.

    Raises:
        InvalidInput: the level is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise InvalidInput(
            f"a disagreement of {level}", why="it must lie between 0 and 1", instead="Give a share such as 0.05"
        )

    def disagreement(threshold: float) -> np.ndarray:
        return ~agrees(top, exit_layers(scores, np.full(scores.shape[1], threshold)))

    return lowest_threshold(candidate_thresholds(scores).tolist(), disagreement, level)


def lowest_threshold(
    thresholds: Sequence[float], disagreement: Callable[[float], Float[np.ndarray, " n"]], level: float
) -> float:
    """Return the lowest threshold at which the expected disagreement is at most `level`; infinity if there is none.

    Args:
        thresholds: the thresholds to try, highest first.
        disagreement: function that returns the loss, from 0 to 1, of each example or prompt at a threshold.
        level: the bound.
    """
    worst, chosen = 0.0, math.inf
    for threshold in thresholds:
        worst = np.maximum(worst, disagreement(threshold))
        if (worst.sum() + 1) / (len(worst) + 1) > level:
            break
        chosen = float(threshold)
    return chosen


def by_precision(
    scores: Float[np.ndarray, "example layer"], saturation: Int[np.ndarray, " example"], precision: float = 0.75
) -> Float[np.ndarray, " layer"]:
    """Return for each layer the lowest threshold with at least this precision, as in the released code.

    The precision of a threshold is the share of the examples with a score above it that saturate at this layer. The
    threshold is infinity if none reaches the precision.
    """
    return np.array([_precision(s, saturation == n, precision) for n, s in enumerate(scores.T)])


def _precision(scores: np.ndarray, own: np.ndarray, precision: float) -> float:
    thresholds, hits, n = _curve(scores, own)
    good = np.flatnonzero(hits / n >= precision)
    return math.inf if not len(good) else float(np.nextafter(thresholds[good[0]], -np.inf))


def by_f1(
    scores: Float[np.ndarray, "example layer"], saturation: Int[np.ndarray, " example"]
) -> Float[np.ndarray, " layer"]:
    """Return for each layer the threshold with the largest F1 for saturation at this layer (the paper's text)."""
    found = []
    for layer, column in enumerate(scores.T):
        own = saturation == layer
        thresholds, hits, n = _curve(column, own)
        f1 = 2 * hits / (n + max(int(own.sum()), 1))
        at = int(f1.argmax())
        found.append(math.inf if hits[at] == 0 else float(np.nextafter(thresholds[at], -np.inf)))
    return np.array(found)


def _curve(scores: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct scores in rising order, and how many examples have at least each score.

    The second result counts only the examples where `own` is True, the third counts all.
    """
    order = np.argsort(scores, kind="stable")
    thresholds, first = np.unique(scores[order], return_index=True)
    above = np.cumsum(own[order][::-1])[::-1]
    return thresholds, above[first], len(scores) - first

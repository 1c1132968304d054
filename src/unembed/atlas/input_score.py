"""Score a rule against the firing of memories (FFN neurons) on text that the rule was not found on.

A memory fires at the positions of the text where its coefficient, at one sign, is among its largest: those that the
index stores. The score is the balanced accuracy of the rule: the mean of the share of firings at which it is true, and
of the share of all other positions at which it is false. That is the expected accuracy on positions drawn to contain
as many firings as not. Its control is the accuracy of the same rule on the firings of random memories of the layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

QUANTILE = 0.95
"""The quantile of the control that a description has to exceed."""


@dataclass(frozen=True)
class InputScore:
    """How far a rule tells where a memory fires."""

    accuracy: float
    """Balanced accuracy, 0 to 1; 0.5 tells nothing."""
    area: float
    """Area under the ROC curve of the coefficient as a sign that the rule is true; see `area_under`."""
    control: float
    """The 95 % quantile of the accuracy on random memories of the layer."""
    hits: float
    """The share of firings at which the rule is true."""
    base: float
    """The share of other positions at which it is true."""
    firings: int

    @property
    def passes(self) -> bool:
        """Tell whether the accuracy exceeds the control."""
        return self.accuracy > self.control


def input_score(
    holds: Bool[np.ndarray, " pos"],
    inside: Bool[np.ndarray, " pos"],
    firings: Int[np.ndarray, " firing"],
    coefficients: Float[np.ndarray, " firing"],
    others: Int[np.ndarray, "memory trigger"],
) -> InputScore | None:
    """Score a rule on a part of a text; None if the memory does not fire there.

    Args:
        holds: where the rule is true.
        inside: the positions of the part.
        firings: those of them at which the memory fires.
        coefficients: the sizes of its coefficient there.
        others: the same for random memories of the layer, filled up with -1.
    """
    if not len(firings):
        return None
    true = int((holds & inside).sum())
    n = int(inside.sum())
    at = holds[firings]
    base = (true - int(at.sum())) / max(1, n - len(firings))
    known = others >= 0
    counts = known.sum(axis=1)
    of_others = np.where(known, holds[np.maximum(others, 0)], False).sum(axis=1)
    bases = (true - of_others) / np.maximum(1, n - counts)
    accuracies = (of_others / np.maximum(1, counts) + 1 - bases)[counts > 0] / 2
    control = float(np.quantile(accuracies, QUANTILE, method="higher")) if len(accuracies) else 1.0
    hits = float(at.mean())
    return InputScore((hits + 1 - base) / 2, area_under(at, coefficients, base), control, hits, base, len(firings))


def area_under(at: Bool[np.ndarray, " firing"], coefficients: Float[np.ndarray, " firing"], base: float) -> float:
    """Return the probability that a coefficient where the rule is true exceeds one where it is false.

    Over as many firings as other positions, in expectation. Other positions have smaller coefficients than all firings;
    among each other they count as equal. 0.5 if the rule is true, or false, everywhere.
    """
    n = len(at)
    inside, outside = coefficients[at], coefficients[~at]
    quiet_in, quiet_out = base * n, (1 - base) * n
    total = (len(inside) + quiet_in) * (len(outside) + quiet_out)
    if not total:
        return 0.5
    above = (inside[:, None] > outside).sum() + 0.5 * (inside[:, None] == outside).sum()
    return float((above + len(inside) * quiet_out + 0.5 * quiet_in * quiet_out) / total)

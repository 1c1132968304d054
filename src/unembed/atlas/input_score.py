"""Score a rule against the firing of memories (FFN neurons) on text that the rule was not found on.

A memory fires at the positions that the index stores: those where its coefficient, at one sign, is among its largest.
The score of a rule is its balanced accuracy: the mean of the share of firings at which the rule is true, and the share
of all other positions at which it is false. This is the expected accuracy on a sample with as many firings as other
positions. The control is the accuracy of the same rule on the firings of other described memories of the layer
(`controls`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from unembed.atlas.controls import bounds, chances


class Firings(NamedTuple):
    """Where a memory fires, at one sign of its coefficient."""

    index: int
    """The memory's number in its layer."""
    at: Int[np.ndarray, " firing"]
    """Positions in the text."""
    size: Float[np.ndarray, " firing"]
    """Absolute values of the coefficient at these positions."""

    def inside(self, part: Bool[np.ndarray, " pos"]) -> Firings:
        """Return the firings at the positions where `part` is True."""
        found = part[self.at]
        return Firings(self.index, self.at[found], self.size[found])


@dataclass(frozen=True)
class InputScore:
    """How well a rule predicts where a memory fires."""

    accuracy: float
    """Balanced accuracy, 0 to 1; 0.5 is chance."""
    area: float
    """Area under the ROC curve for predicting from the coefficient whether the rule is true; see `area_under`."""
    control: float
    """95 % quantile of the rule's accuracies on other described memories of the layer; infinity if there are fewer than
    19 of them."""
    hits: float
    """The share of firings at which the rule is true."""
    base: float
    """The share of all other positions at which the rule is true."""
    firings: int
    chance: float
    """The p-value of the accuracy, by its rank among the rule's accuracies on the other memories."""
    random_passes: bool | None
    """Whether the rule passes the same test on the firings of another memory; None if that was not tested."""

    @property
    def passes(self) -> bool:
        """Whether the accuracy exceeds the control."""
        return self.accuracy > self.control


def least_hits(
    holds: Bool[np.ndarray, " pos"],
    firings: Firings,
    document: Int[np.ndarray, " pos"],
    parts: Sequence[Bool[np.ndarray, " pos"]],
) -> float:
    """Return the smallest share of firings at which a rule is true, over several parts of a text.

    For each part there are two shares: one over all its firings, and the mean of the shares of its documents. The
    second prevents one document with many firings from deciding the result.

    Args:
        document: the number of the document of each position.
        parts: for each part, True at its positions; each part contains at least one firing.
    """
    shares = list[float]()
    for part in parts:
        at = firings.inside(part).at
        _, own, count = np.unique(document[at], return_inverse=True, return_counts=True)
        true = np.bincount(own, weights=holds[at])
        shares += [float(true.sum() / len(at)), float((true / count).mean())]
    return min(shares)


class InputTest:
    """Tests rules on a part of a text."""

    def __init__(self, inside: Bool[np.ndarray, " pos"], controls: Sequence[Firings]) -> None:
        """Collect the firings of the control memories.

        Args:
            inside: True for the positions on which rules are tested.
            controls: the firings of the control memories; only those at tested positions count.
        """
        self._inside, self._n = inside, int(inside.sum())
        within = [one for control in controls if len((one := control.inside(inside)).at)]
        self._index = np.array([one.index for one in within], dtype=np.int64)
        self._counts = np.array([len(one.at) for one in within], dtype=np.int64)
        self._at = np.concatenate([np.zeros(0, dtype=np.int64), *(one.at for one in within)])
        self._starts = np.cumsum(self._counts) - self._counts

    def score(
        self, holds: Bool[np.ndarray, " pos"], firings: Firings, random: Firings | None = None
    ) -> InputScore | None:
        """Score a rule on a memory; None if the memory does not fire at any tested position.

        Args:
            holds: True for the positions at which the rule is true.
            firings: the firings of the memory that the rule describes.
            random: the firings of another memory, on which the rule is tested for `InputScore.random_passes`.
        """
        own = firings.inside(self._inside)
        if not len(own.at):
            return None
        true = int(np.count_nonzero(holds & self._inside))
        controls = np.zeros(0)
        if len(self._at):
            hits = np.add.reduceat(holds[self._at], self._starts, dtype=np.int64)
            controls = self._accuracies(hits, self._counts, true)
        counted = self._index != own.index
        (bound,) = bounds(controls[None], counted[None])
        at = holds[own.at]
        hits, n = int(at.sum()), len(at)
        base = (true - hits) / max(1, self._n - n)
        passed = None
        if random is not None and len(other := random.inside(self._inside).at):
            (limit,) = bounds(controls[None], (counted & (self._index != random.index))[None])
            passed = bool(self._accuracy(holds[other], true) > limit)
        accuracy = self._accuracy(at, true)
        (chance,) = chances(np.array([accuracy]), controls[None], counted[None])
        area = area_under(at, own.size, base)
        return InputScore(accuracy, area, float(bound), hits / n, base, n, float(chance), passed)

    def _accuracy(self, at: Bool[np.ndarray, " firing"], true: int) -> float:
        return float(self._accuracies(np.array([at.sum()]), np.array([len(at)]), true)[0])

    def _accuracies(
        self, hits: Int[np.ndarray, " memory"], counts: Int[np.ndarray, " memory"], true: int
    ) -> Float[np.ndarray, " memory"]:
        """Return the balanced accuracy of one rule on each memory.

        Args:
            hits: number of each memory's firings at which the rule is true.
            counts: number of each memory's firings.
            true: number of tested positions at which the rule is true.
        """
        return (hits / counts + 1 - (true - hits) / np.maximum(1, self._n - counts)) / 2


def area_under(at: Bool[np.ndarray, " firing"], coefficients: Float[np.ndarray, " firing"], base: float) -> float:
    """Return the probability that a coefficient where the rule is true exceeds one where it is false.

    Firings and all other positions have the same total weight. Other positions have smaller coefficients than all
    firings, and count as equal to one another. The result is 0.5 if the rule is true everywhere or false everywhere.

    Args:
        at: whether the rule is true at each firing.
        coefficients: the absolute coefficient at each firing.
        base: the share of other positions at which the rule is true.
    """
    n = len(at)
    inside, outside = coefficients[at], coefficients[~at]
    quiet_in, quiet_out = base * n, (1 - base) * n
    total = (len(inside) + quiet_in) * (len(outside) + quiet_out)
    if not total:
        return 0.5
    above = (inside[:, None] > outside).sum() + 0.5 * (inside[:, None] == outside).sum()
    return float((above + len(inside) * quiet_out + 0.5 * quiet_in * quiet_out) / total)

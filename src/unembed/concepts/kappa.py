"""Agreement of people beyond chance: Cohen's kappa of two, Fleiss' kappa of any number.

Source: Cohen 1960; Fleiss 1971. Both are 1 for perfect agreement and 0 for what chance gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from unembed.errors import InvalidInput


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float | None:
    """Cohen's kappa of two people's answers on the same items; None where both always gave one and the same answer.

    Raises:
        InvalidInput: no items, or not the same ones.
    """
    if len(first) != len(second) or not first:
        raise InvalidInput(f"{len(first)} and {len(second)} answers", why="kappa needs the same items, at least one")
    n = len(first)
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / n
    one, two = Counter(first), Counter(second)
    expected = sum(one[answer] * two[answer] for answer in one) / n**2
    return None if expected == 1 else (observed - expected) / (1 - expected)


def fleiss_kappa(answers: Sequence[Sequence[Hashable]]) -> float | None:
    """Fleiss' kappa of items that were each answered by the same number of people (not always the same ones).

    Args:
        answers: for each item, the answers it got.

    Returns:
        The kappa; None where every answer is the same one.

    Raises:
        InvalidInput: no items, items with different numbers of answers, or fewer than two.
    """
    sizes = {len(item) for item in answers}
    if len(sizes) != 1 or min(sizes) < 2:
        raise InvalidInput(
            f"items with {sorted(sizes)} answers", why="Fleiss' kappa needs the same number for each, at least two"
        )
    raters = sizes.pop()
    counts = [Counter(item) for item in answers]
    agreed = [(sum(c * c for c in count.values()) - raters) / (raters * (raters - 1)) for count in counts]
    observed = sum(agreed) / len(agreed)
    totals = sum(counts, Counter())
    expected = sum((total / (len(answers) * raters)) ** 2 for total in totals.values())
    return None if expected == 1 else (observed - expected) / (1 - expected)

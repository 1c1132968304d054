"""How far annotators agree beyond chance: Cohen's kappa for two, Fleiss' kappa for any number.

Source: Cohen 1960; Fleiss 1971.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from unembed.errors import InvalidInput


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """Agreement of two annotators who labelled the same items, 1 at most, 0 at chance; NaN where both say one thing.

    Raises:
        InvalidInput: no items, or not the same number.
    """
    if len(first) != len(second) or not first:
        raise InvalidInput(
            f"labels of {len(first)} and {len(second)} items", why="agreement needs the same items from both"
        )
    n = len(first)
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / n
    one, two = Counter(first), Counter(second)
    expected = sum(one[label] * two[label] for label in one) / n**2
    return float("nan") if expected == 1 else (observed - expected) / (1 - expected)


def fleiss_kappa(items: Sequence[Sequence[Hashable]]) -> float:
    """Agreement of several annotators, as many labels for every item; NaN where only one label is ever used.

    Raises:
        InvalidInput: no items, fewer than two labels for an item, or not as many for each.
    """
    sizes = {len(labels) for labels in items}
    if len(sizes) != 1 or min(sizes) < 2:
        raise InvalidInput(
            "labels for Fleiss' kappa", why="every item needs as many labels, two or more, as every other"
        )
    n, raters = len(items), sizes.pop()
    totals: Counter[Hashable] = Counter()
    observed = 0.0
    for labels in items:
        counts = Counter(labels)
        totals.update(counts)
        observed += (sum(c * c for c in counts.values()) - raters) / (raters * (raters - 1))
    expected = sum((c / (n * raters)) ** 2 for c in totals.values())
    return float("nan") if expected == 1 else (observed / n - expected) / (1 - expected)

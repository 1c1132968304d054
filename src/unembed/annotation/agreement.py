"""Measure how much annotators agree beyond chance: Cohen's kappa for two, Fleiss' kappa for any number.

Annotators are compared either on the labels that an index stores (`label_agreement`: is there a pattern, of which
kinds, with which members) or on annotation files (`token_agreement`: does this token belong to a pattern).

Source: Cohen 1960; Fleiss 1971.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from unembed.annotation.files import KINDS, Annotation
from unembed.annotation.rules import RULES
from unembed.errors import InvalidInput
from unembed.results import Provenance, Table


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """Return Cohen's kappa of two annotators: at most 1, 0 for chance agreement, NaN if only one label occurs.

    Args:
        first: one annotator's label of each item.
        second: the other annotator's labels of the same items.

    Raises:
        InvalidInput: there are no items, or the numbers of labels differ.
    """
    if len(first) != len(second) or not first:
        raise InvalidInput(
            f"labels of {len(first)} and {len(second)} items", why="both annotators must label the same items"
        )
    n = len(first)
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / n
    first_counts, second_counts = Counter(first), Counter(second)
    expected = sum(first_counts[label] * second_counts[label] for label in first_counts) / n**2
    return math.nan if expected == 1 else (observed - expected) / (1 - expected)


def fleiss_kappa(items: Sequence[Sequence[Hashable]]) -> float:
    """Return Fleiss' kappa of several annotators; NaN if only one label occurs.

    Args:
        items: for each item, the labels that its annotators gave it.

    Raises:
        InvalidInput: no items, fewer than two labels for an item, or items with different numbers of labels.
    """
    sizes = {len(labels) for labels in items}
    if len(sizes) != 1 or min(sizes) < 2:
        raise InvalidInput("labels for Fleiss' kappa", why="all items need the same number of labels, at least two")
    n, raters = len(items), sizes.pop()
    totals: Counter[Hashable] = Counter()
    observed = 0.0
    for labels in items:
        counts = Counter(labels)
        totals.update(counts)
        observed += (sum(c * c for c in counts.values()) - raters) / (raters * (raters - 1))
    expected = sum((c / (n * raters)) ** 2 for c in totals.values())
    return math.nan if expected == 1 else (observed / n - expected) / (1 - expected)


@dataclass(frozen=True)
class Agreement:
    """The agreement of annotators on one question; a kappa is None if it is undefined (all answers are equal)."""

    question: str
    items: int
    """Number of items that at least two people annotated."""
    pairs: dict[str, float | None]
    """Cohen's kappa of each pair of annotators, over the items that both annotated."""
    fleiss: float | None
    """Fleiss' kappa over the items with the most common number of annotators; None if there are no items."""


def label_agreement(labels: Iterable[Mapping[str, Any]]) -> list[Agreement]:
    """Measure the agreement of annotators on three questions, from the labels that an index stores.

    Args:
        labels: rows of `Index.labels()`.

    Returns:
        The agreement on each question: "is there a pattern", "which kinds of pattern", "does this token or prefix
        belong to one".
    """
    answers = _answers(labels)
    questions = {
        "is there a pattern": lambda a: bool(a["kinds"]),
        "which kinds of pattern": lambda a: tuple(sorted(a["kinds"])),
    }
    agreements = []
    for question, answer in questions.items():
        by_item = {item: {author: answer(a) for author, a in by.items()} for item, by in answers.items()}
        agreements.append(_agreement(question, by_item))
    members = {
        (item, position): {author: position in a["members"] for author, a in by.items()}
        for item, by in answers.items()
        for position in range(RULES["key" if item[0] == "key" else "value"].shown)
    }
    return [*agreements, _agreement("does this token or prefix belong to one", members)]


def _answers(labels: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int, int], dict[str, dict[str, Any]]]:
    """Return, for each item and author, the kinds of the patterns found and the positions of their members.

    An item is (kind, layer, index), where kind is "key", "value" or "random value".
    """
    answers: Any = defaultdict(lambda: defaultdict(lambda: {"kinds": set(), "members": set()}))
    for row in labels:
        if row["kind"] in ("key", "value", "random value") and {"pattern", "members"} <= set(row["notes"]):
            answer = answers[row["kind"], row["layer"], row["index"]][row["author"]]
            answer["kinds"] |= {row["notes"]["pattern"]} - {None}
            answer["members"] |= set(row["notes"]["members"])
    return answers


def _agreement(question: str, answers: Mapping[Any, Mapping[str, Any]]) -> Agreement:
    shared = {item: by for item, by in answers.items() if len(by) > 1}
    annotators = sorted({author for by in shared.values() for author in by})
    pairs = {}
    for a, b in combinations(annotators, 2):
        both = [by for by in shared.values() if a in by and b in by]
        if both:
            pairs[f"{a} and {b}"] = _none_if_nan(cohen_kappa([by[a] for by in both], [by[b] for by in both]))
    sizes = [len(by) for by in shared.values()]
    fleiss = None
    if sizes:
        commonest = max(set(sizes), key=lambda n: (sizes.count(n), n))
        fleiss = _none_if_nan(fleiss_kappa([list(by.values()) for by in shared.values() if len(by) == commonest]))
    return Agreement(question, len(shared), pairs, fleiss)


def _none_if_nan(kappa: float) -> float | None:
    return None if math.isnan(kappa) else kappa


def token_agreement(annotations: Sequence[Annotation], provenance: Provenance | None = None) -> Table:
    """Return the agreement of annotators on whether a token belongs to a pattern.

    Kappa is computed for each pair of annotators and for all together; for patterns of any kind and for each kind.

    Returns:
        Columns: question, annotators, number of tokens, each annotator's share of tokens in a pattern, kappa, and the
        statistic (Cohen's kappa for two annotators, Fleiss' for all).

    Raises:
        InvalidInput: there are fewer than two annotations, or they are not of the same lists of tokens.
    """
    if len(annotations) < 2:
        raise InvalidInput(f"{len(annotations)} annotation file", why="agreement needs two annotators or more")
    first = annotations[0]
    for other in annotations[1:]:
        if other.vectors != first.vectors or other.ids != first.ids:
            raise InvalidInput(
                f"annotations of {first.annotator} and {other.annotator}",
                why="they do not annotate the same lists of tokens",
            )
    names = ("question", "annotators", "tokens", "share_in_a_pattern", "kappa", "statistic")
    groups: list[tuple[int, ...]] = list(combinations(range(len(annotations)), 2))
    groups += [tuple(range(len(annotations)))] if len(annotations) > 2 else []
    rows = []
    for question, kinds in {"in a concept": KINDS[:3], **{kind: (kind,) for kind in KINDS}}.items():
        labels = [annotation.token_labels(kinds) for annotation in annotations]
        for group in groups:
            chosen = [labels[i] for i in group]
            pair = len(group) == 2
            kappa = cohen_kappa(*chosen) if pair else fleiss_kappa(list(zip(*chosen, strict=True)))
            authors = " and ".join(annotations[i].annotator for i in group)
            shares = [sum(c) / len(c) for c in chosen]
            rows.append((question, authors, len(chosen[0]), shares, kappa, "Cohen" if pair else "Fleiss"))
    return Table.of_rows("Agreement of annotators", names, rows, provenance or Provenance("annotations", None, "none"))

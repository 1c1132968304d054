"""How far annotators agree: on whether there is a pattern, on its kind, and on which tokens or prefixes have it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from unembed.concepts.annotation.agreement import cohen_kappa, fleiss_kappa
from unembed.concepts.annotation.queue import RULES

Answers = dict[tuple[str, int, int], dict[str, dict[str, Any]]]
_WHATS = {"key": "key", "value": "value", "random value": "value"}


@dataclass(frozen=True)
class Agreement:
    """The kappas of one question; None where too little was annotated, or all answers are one and the same."""

    question: str
    items: int
    """Items that at least two people annotated."""
    pairs: dict[str, float | None]
    """Cohen's kappa of each two people on the items that both annotated."""
    fleiss: float | None
    """Over the items with the commonest number of annotators."""


def agreement(labels: Iterable[Mapping[str, Any]]) -> list[Agreement]:
    """Agreement on three questions, from labels that the annotation screen stored.

    Args:
        labels: rows of `Index.labels()`.

    Returns:
        "is there a pattern", "which kinds of pattern", "does this token or prefix belong to one".
    """
    answers = _answers(labels)
    whole = {
        "is there a pattern": lambda a: bool(a["kinds"]),
        "which kinds of pattern": lambda a: tuple(sorted(a["kinds"])),
    }
    found = []
    for question, answer in whole.items():
        found.append(_kappas(question, {k: {w: answer(a) for w, a in by.items()} for k, by in answers.items()}))
    members = {
        (key, place): {who: place in a["members"] for who, a in by.items()}
        for key, by in answers.items()
        for place in range(RULES[_WHATS[key[0]]].shown)
    }
    found.append(_kappas("does this token or prefix belong to one", members))
    return found


def _answers(labels: Iterable[Mapping[str, Any]]) -> Answers:
    """What each person said of each item: the kinds of patterns found, and the places that have one."""
    found: Answers = defaultdict(lambda: defaultdict(lambda: {"kinds": set(), "members": set()}))
    for row in labels:
        if row["kind"] in _WHATS and "pattern" in row["notes"]:
            said = found[row["kind"], row["layer"], row["index"]][row["author"]]
            said["kinds"] |= {row["notes"]["pattern"]} - {None}
            said["members"] |= set(row["notes"]["members"])
    return found


def _kappas(question: str, said: Mapping[Any, Mapping[str, Any]]) -> Agreement:
    shared = {key: by for key, by in said.items() if len(by) > 1}
    people = sorted({who for by in shared.values() for who in by})
    pairs = {}
    for a, b in combinations(people, 2):
        both = [by for by in shared.values() if a in by and b in by]
        if both:
            pairs[f"{a} and {b}"] = _known(cohen_kappa([by[a] for by in both], [by[b] for by in both]))
    sizes = [len(by) for by in shared.values()]
    fleiss = None
    if sizes:
        most = max(set(sizes), key=lambda n: (sizes.count(n), n))
        fleiss = _known(fleiss_kappa([list(by.values()) for by in shared.values() if len(by) == most]))
    return Agreement(question, len(shared), pairs, fleiss)


def _known(kappa: float) -> float | None:
    """None where all answers are one and the same, which has no kappa."""
    return None if math.isnan(kappa) else kappa

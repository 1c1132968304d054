"""Define what counts as a pattern in the texts on which a memory (FFN neuron) fires, or in the tokens it promotes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unembed.errors import InvalidInput

NONE = "(no pattern)"
"""The label of an item in which an annotator found nothing."""


@dataclass(frozen=True)
class Rules:
    """What annotators see, and what counts as a pattern."""

    shown: int
    """Number of texts or tokens that an annotator sees."""
    at_least: int
    """Minimum number of texts or tokens in a pattern."""
    kinds: tuple[str, ...]
    instruction: str


RULES: Mapping[str, Rules] = {
    "key": Rules(
        25,
        3,
        ("shallow", "semantic"),
        "Look for patterns that repeat in at least 3 of the prefixes. Describe each in a few words, mark it as "
        "shallow (the same last words, an n-gram) or semantic (a topic, a kind of sentence), and tick the prefixes "
        "that have it. A prefix may have several patterns, or none.",
    ),
    "value": Rules(
        30,
        4,
        ("semantic", "syntactic", "names"),
        "Look for patterns that at least 4 of the tokens share. Describe each in a few words, state whether it is "
        "semantic (a topic, a meaning), syntactic (a part of speech, a form) or of names, and tick the tokens that "
        "belong to it. Pieces of words may be left out. If there is none, report that.",
    ),
}


def check_pattern(
    what: str, kind: str, members: Sequence[int], rules: Rules, kinds: Sequence[str], shown: int
) -> list[int]:
    """Check a pattern, and return its members sorted and without duplicates.

    Args:
        what: a description of the pattern, for error messages.
        kind: the kind of the pattern.
        members: positions of the texts or tokens in the pattern, counted from 0.
        rules: gives the minimum number of members.
        kinds: the kinds that are allowed.
        shown: the number of texts or tokens that the annotator saw.

    Raises:
        InvalidInput: too few members, a position outside the list, or an unknown kind.
    """
    ordered = sorted(set(members))
    if kind not in kinds:
        raise InvalidInput(what, why=f"its kind {kind!r} is not one of {', '.join(kinds)}")
    if ordered and not 0 <= ordered[0] <= ordered[-1] < shown:
        raise InvalidInput(what, why=f"its members must be numbers from 0 to {shown - 1}")
    if len(ordered) < rules.at_least:
        raise InvalidInput(
            what,
            why=f"it has {len(ordered)} members, and a pattern needs {rules.at_least}",
            instead="Mark more tokens, or report that there is no pattern",
        )
    return ordered


def pattern_notes(what: str, label: str, kind: str, members: Sequence[int]) -> dict[str, Any]:
    """Return the notes that an index stores with the label of a pattern.

    Args:
        what: "key" or "value".
        label: the description of the pattern, or `NONE`.
        kind: the kind of the pattern; empty if there is no pattern.
        members: positions of the texts or tokens in the pattern, counted from 0.

    Raises:
        InvalidInput: see `check_pattern`.
    """
    if label == NONE:
        return {"pattern": None, "members": []}
    rules = RULES[what]
    return {
        "pattern": kind,
        "members": check_pattern(f"pattern {label!r}", kind, members, rules, rules.kinds, rules.shown),
    }

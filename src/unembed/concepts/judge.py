"""A judge that names concepts from top tokens, such as a language model the user has; none is ever required.

Give any object with `name(tokens) -> list of patterns`; what it says is checked as a person's annotation is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from unembed.concepts.annotation import KINDS, Annotation, Pattern
from unembed.concepts.classes import FEWEST
from unembed.concepts.of_values import VectorConcepts
from unembed.errors import InvalidInput


@runtime_checkable
class Judge(Protocol):
    """Whoever names concepts."""

    @property
    def annotator(self) -> str:
        """A name for tables of agreement."""
        ...

    def name(self, tokens: Sequence[str]) -> Sequence[Pattern]:
        """The patterns in a vector's top tokens, most promoted first."""
        ...


def judged(found: VectorConcepts, judge: Judge) -> Annotation:
    """The judge's patterns for every vector, to compare with people's and the program's by `annotation.agreement`.

    Raises:
        InvalidInput: the judge named a kind or a token that does not exist, or fewer than four tokens.
    """
    every = []
    for label, ids in zip(found.labels, found.ids.tolist(), strict=True):
        patterns = tuple(judge.name(found.lm.token_strings(ids)))
        for pattern in patterns:
            known = all(0 <= t < len(ids) for t in pattern.tokens)
            if pattern.kind not in KINDS or not known or len(set(pattern.tokens)) < FEWEST:
                raise InvalidInput(
                    f"{judge.annotator} on {label}: pattern {pattern.description!r}",
                    why=f"it needs a kind of {', '.join(KINDS)} and {FEWEST} or more places from 0 to {len(ids) - 1}",
                )
        every.append(patterns)
    ids = tuple(tuple(row) for row in found.ids.tolist())
    return Annotation(judge.annotator, found.labels, tuple(len(row) for row in ids), ids, tuple(every))

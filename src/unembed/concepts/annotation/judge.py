"""A judge that finds patterns where the papers asked people, such as a language model the user has; never required.

Give any object with a name for tables and a method that answers `patterns(items, instruction)`: the items are a value's
top tokens or a key's trigger prefixes, the instruction is what people are told (`queue.RULES`). What it says is
checked as a person's answer is, and stands beside what the program finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from unembed.concepts.annotation.files import KINDS, Annotation, Pattern
from unembed.concepts.annotation.queue import RULES
from unembed.concepts.value_concepts import VectorConcepts
from unembed.errors import InvalidInput


@runtime_checkable
class Judge(Protocol):
    """Whoever finds patterns."""

    @property
    def annotator(self) -> str:
        """A name for tables of agreement; answers that were kept are known by it."""
        ...

    def patterns(self, items: Sequence[str], instruction: str) -> Sequence[Pattern]:
        """What some of the items share; `Pattern.tokens` are the places of these items, from 0."""
        ...


def require_judge(judge: object) -> Judge:
    """The judge, if it is one.

    Raises:
        InvalidInput: it is not.
    """
    if not isinstance(judge, Judge):
        raise InvalidInput(
            f"a judge of type {type(judge).__name__}",
            why="it has no name `annotator` and no method `patterns(items, instruction)`",
            instead="Give such an object from Python; see unembed.concepts.annotation.judge",
        )
    return judge


def judge_patterns(
    judge: Judge, what: Literal["key", "value"], items: Sequence[str], where: str
) -> tuple[Pattern, ...]:
    """The judge's patterns in a key's prefixes or a value's tokens.

    Args:
        judge: who is asked.
        what: "key" for prefixes, "value" for tokens.
        items: the prefixes or tokens.
        where: the key or value, for messages.

    Raises:
        InvalidInput: a pattern is of an unknown kind, names an item that was not shown, or too few of them.
    """
    rules = RULES[what]
    kinds = KINDS if what == "value" else rules.kinds
    found = tuple(judge.patterns(list(items), rules.instruction))
    for pattern in found:
        places = set(pattern.tokens)
        if pattern.kind not in kinds or len(places) < rules.at_least or not places <= set(range(len(items))):
            raise InvalidInput(
                f"{judge.annotator} on {where}: pattern {pattern.description!r}",
                why=f"it needs a kind of {', '.join(kinds)} and {rules.at_least} or more places from 0 to "
                f"{len(items) - 1}",
            )
    return found


def judge_annotation(found: VectorConcepts, judge: Judge) -> Annotation:
    """The judge's patterns for every vector, to compare with people's and the program's by `annotation.agreement`.

    Raises:
        InvalidInput: see `asked`.
    """
    ids = tuple(tuple(row) for row in found.ids.tolist())
    every = tuple(
        judge_patterns(judge, "value", found.lm.token_strings(list(row)), label)
        for label, row in zip(found.labels, ids, strict=True)
    )
    return Annotation(judge.annotator, found.labels, tuple(len(row) for row in ids), ids, every)

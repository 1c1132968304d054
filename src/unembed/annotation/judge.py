"""Let a judge, such as a language model that the user runs, find patterns in place of human annotators.

A judge is any object with an attribute `annotator` (its name) and a method `patterns(items, instruction)`. The items
are the top tokens of a value vector, or the texts on which a memory fires most; the instruction is the same as for
people (`rules.RULES`). A judge's patterns are checked like a person's, and reported separately from the concepts that
unembed finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from unembed.annotation.files import KINDS, Annotation, Pattern
from unembed.annotation.rules import RULES, check_pattern
from unembed.concepts.value_concepts import VectorConcepts
from unembed.errors import InvalidInput


@runtime_checkable
class Judge(Protocol):
    """An object that finds patterns in a list of texts or tokens."""

    @property
    def annotator(self) -> str:
        """The judge's name in tables and files."""
        ...

    def patterns(self, items: Sequence[str], instruction: str) -> Sequence[Pattern]:
        """Return the patterns among the items; `Pattern.tokens` are positions in `items`, counted from 0."""
        ...


def require_judge(judge: object) -> Judge:
    """Return the object after checking that it is a judge.

    Raises:
        InvalidInput: the object is not a judge.
    """
    if not isinstance(judge, Judge):
        raise InvalidInput(
            f"a judge of type {type(judge).__name__}",
            why="it lacks the attribute `annotator` (a name) or the method `patterns(items, instruction)`",
            instead="Give such an object from Python; see unembed.annotation.judge",
        )
    return judge


def judge_patterns(
    judge: Judge, what: Literal["key", "value"], items: Sequence[str], where: str
) -> tuple[Pattern, ...]:
    """Return the patterns that a judge finds in some texts or tokens.

    Args:
        what: "key" if the items are texts on which a memory fires, "value" if they are tokens that it promotes.
        items: the texts or tokens.
        where: the name of the memory, for error messages.

    Raises:
        InvalidInput: a pattern has an unknown kind, a position outside the items, or too few items.
    """
    rules = RULES[what]
    kinds = KINDS if what == "value" else rules.kinds
    patterns = tuple(judge.patterns(list(items), rules.instruction))
    for pattern in patterns:
        name = f"{judge.annotator} on {where}: pattern {pattern.description!r}"
        check_pattern(name, pattern.kind, pattern.tokens, rules, kinds, len(items))
    return patterns


def judge_annotation(found: VectorConcepts, judge: Judge) -> Annotation:
    """Return a judge's patterns for all vectors; `annotation.token_agreement` compares them with other annotations.

    Raises:
        InvalidInput: see `judge_patterns`.
    """
    ids = tuple(tuple(row) for row in found.ids.tolist())
    patterns = tuple(
        judge_patterns(judge, "value", found.lm.token_strings(list(row)), label)
        for label, row in zip(found.labels, ids, strict=True)
    )
    return Annotation(judge.annotator, found.labels, ids, patterns)

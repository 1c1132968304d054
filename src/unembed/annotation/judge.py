"""An optional judge that finds patterns instead of human annotators, such as a language model that the user runs.

A judge is any object with a name, `annotator`, and a method `patterns(items, instruction)`. The items are a value's
top tokens or a key's trigger prefixes; the instruction is the one that people get (`rules.RULES`). Its answers are
checked like a person's and reported separately from the program's own concepts.
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
    """An object that decides whether a list of tokens shares a concept."""

    @property
    def annotator(self) -> str:
        """The annotator's name in tables and stored answers."""
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
            why="it has no name `annotator` and no method `patterns(items, instruction)`",
            instead="Give such an object from Python; see unembed.annotation.judge",
        )
    return judge


def judge_patterns(
    judge: Judge, what: Literal["key", "value"], items: Sequence[str], where: str
) -> tuple[Pattern, ...]:
    """Return the judge's patterns in a key's prefixes or a value's tokens.

    Args:
        what: "key" for prefixes, "value" for tokens.
        items: the prefixes or tokens.
        where: the key or value, for messages.

    Raises:
        InvalidInput: a pattern is of an unknown kind, names an item that was not shown, or too few of them.
    """
    rules = RULES[what]
    kinds = KINDS if what == "value" else rules.kinds
    patterns = tuple(judge.patterns(list(items), rules.instruction))
    for pattern in patterns:
        name = f"{judge.annotator} on {where}: pattern {pattern.description!r}"
        check_pattern(name, pattern.kind, pattern.tokens, rules, kinds, len(items))
    return patterns


def judge_annotation(found: VectorConcepts, judge: Judge) -> Annotation:
    """Return the judge's patterns for every vector; `annotation.token_agreement` compares them with others.

    Raises:
        InvalidInput: see `judge_patterns`.
    """
    ids = tuple(tuple(row) for row in found.ids.tolist())
    patterns = tuple(
        judge_patterns(judge, "value", found.lm.token_strings(list(row)), label)
        for label, row in zip(found.labels, ids, strict=True)
    )
    return Annotation(judge.annotator, found.labels, tuple(len(row) for row in ids), ids, patterns)

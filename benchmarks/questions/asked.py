"""The questions, and how an answer is checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("questions.jsonl")
_PART = re.compile(r"\bL\d+[HM]\d+\b")
_NUMBER = re.compile(r"[-−+]?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Call:
    """A call of a tool, and where in its answer the answer to the question stands: the first group of a pattern."""

    tool: str
    arguments: Mapping[str, Any]
    stands: str = ""


@dataclass(frozen=True)
class Question:
    """A question about a model, its known answer, and the calls that answer it.

    Attributes:
        id: its name.
        model: a shipped model, `smollm2`, or a changed copy of wren.
        text: the question.
        answer: a head or memory, a token, or a number.
        within: how far a number may be off; None for other answers.
        calls: the calls that answer it.
    """

    id: str
    model: str
    text: str
    answer: str
    within: float | None
    calls: tuple[Call, ...]

    def accepts(self, given: str) -> bool:
        """Whether an answer is right: it names this part and no other, this token, or a number close enough.

        Of an answer in sentences the last line counts, so that an agent may explain first.
        """
        lines = [line for line in given.strip().splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        if self.within is not None:
            numbers = [float(one.replace("−", "-")) for one in _NUMBER.findall(last.replace(",", ""))]
            return len(numbers) == 1 and abs(numbers[0] - float(self.answer)) <= self.within
        if _PART.fullmatch(self.answer):
            return set(_PART.findall(last)) == {self.answer}
        bare = last.strip(" .\"'`“”·").casefold()
        return bare == self.answer.strip().casefold()


def questions() -> list[Question]:
    """All questions, in the order of the file."""
    rows = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]
    return [
        Question(
            row["id"], row["model"], row["text"], row["answer"], row.get("within"),
            tuple(Call(one["tool"], one.get("arguments", {}), one.get("stands", "")) for one in row["calls"]),
        )
        for row in rows
    ]  # fmt: skip


def graded(answers: Sequence[Mapping[str, str]], asked: Sequence[Question]) -> dict[str, bool]:
    """Whether each question was answered rightly; one without an answer was not.

    Raises:
        ValueError: an answer names no question.
    """
    given = {str(one["id"]): str(one["answer"]) for one in answers}
    if unknown := sorted(given.keys() - {one.id for one in asked}):
        raise ValueError(f"{', '.join(unknown)}: no question has this id; `list` prints those that there are")
    return {one.id: one.id in given and one.accepts(given[one.id]) for one in asked}

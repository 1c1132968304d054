"""The reference calls of each question, made, and what their answers say."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.questions.asked import Call, Question
from benchmarks.questions.plants import PLANTS

from unembed.cli.agents.calls import Calls
from unembed.cli.option_groups import Opening


def model_of(name: str, folder: Path) -> str:
    """What `--model` takes for a question's model: the folder of a changed copy, or the name itself."""
    return str(folder / name) if name in PLANTS else name


def _answer(calls: Calls, call: Call) -> str:
    """All pages of a call's answer."""
    with contextlib.redirect_stderr(io.StringIO()):  # remarks for a person at a terminal
        first = calls.call(call.tool, call.arguments).text
    if not (found := re.search(r"\(page 1 of (\d+); more\(handle='(\w+)'", first)):
        return first
    return first + "".join(calls.more(found[2], page) for page in range(2, int(found[1]) + 1))


def replayed(questions: Sequence[Question], folder: Path) -> Iterator[tuple[Question, str]]:
    """Each question with the answer that its reference calls give, model by model; "" where they give none.

    Raises:
        UnembedError: a call was refused, or a model cannot be opened.
    """
    for name in dict.fromkeys(one.model for one in questions):
        calls = Calls(Opening(model=model_of(name, folder)))
        answers: dict[str, str] = {}  # several questions share a call
        for question in (one for one in questions if one.model == name):
            said = ""
            for call in question.calls:
                asked = f"{call.tool} {json.dumps(call.arguments)}"
                if asked not in answers:
                    answers[asked] = _answer(calls, call)
                if call.stands and (found := re.search(call.stands, answers[asked], re.MULTILINE)):
                    said = re.sub(r"^(\d+) +(\d+)$", r"L\1H\2", found[1]).lstrip(
                        "·"
                    )  # tables of heads have two columns
            yield question, said

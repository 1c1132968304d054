"""Read files of prompts and their counterfactuals: one JSON object or list on each line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unembed.circuit_graph.cases import Case, read_case
from unembed.errors import InvalidInput, NotOneToken, reading
from unembed.models.decoder import Decoder

_KEYS = (
    ("prompt", "counterfactual", "token", "against"),
    ("clean_prefix", "patch_prefix", "clean_answer", "patch_answer"),
)
"""Names of the four fields of a line: those of this project, and those in the data of Marks et al. 2024."""


def read_pairs(path: Path) -> list[tuple[Any, ...]]:
    """Read prompt, counterfactual, token and the other token from each line.

    Raises:
        InvalidInput: the file cannot be read, has no lines, or has a line without these four fields.
    """
    with reading(f"cannot read {path}"):
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    found = [_pair(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise InvalidInput(f"{path}", why="it has no lines", instead="Write one JSON object on each line")
    return found


def _pair(path: Path, number: int, line: str) -> tuple[Any, ...]:
    with reading(f"line {number} of {path}"):
        stored = json.loads(line)
    if isinstance(stored, list) and len(stored) == 4:
        return tuple(stored)
    for keys in _KEYS:
        if isinstance(stored, dict) and set(keys) <= set(stored):
            return tuple(stored[key] for key in keys)
    raise InvalidInput(
        f"line {number} of {path}",
        why="it has no prompt, counterfactual, token and against",
        instead='Write {"prompt": "The friends", "counterfactual": "The friend", "token": " have", "against": " has"}',
    )


def usable_cases(lm: Decoder, pairs: Sequence[Sequence[Any]]) -> tuple[tuple[Case, ...], int]:
    """Make a case of each usable pair, and count the pairs that are left out.

    A pair is usable if its prompt and counterfactual have equally many tokens, and both answers are single tokens.

    Raises:
        InvalidInput: no pair is usable.
    """
    found = list[Case]()
    for prompt, other, token, against in pairs:
        try:
            found.append(read_case(lm, prompt, other, token, against))
        except (InvalidInput, NotOneToken) as error:
            reason = error
    if not found:
        raise InvalidInput(
            f"{len(pairs)} pairs, all refused",
            why=f"the reason for the last one is: {reason}",
            instead="Give prompts with as many tokens as their counterfactuals, and answers of one token",
        )
    return tuple(found), len(pairs) - len(found)

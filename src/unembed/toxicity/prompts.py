"""Read prompts from a file in the format of RealToxicityPrompts or with one prompt on each line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from unembed.errors import InvalidInput, reading


@dataclass(frozen=True)
class Prompt:
    """A prompt, its line number in the file, and its toxicity according to the data set."""

    text: str
    line: int
    toxicity: float | None = None
    challenging: bool = False


def read_prompts(path: str | Path, *, challenging_only: bool = False, limit: int | None = None) -> list[Prompt]:
    """Return the prompts of a file.

    Args:
        path: JSON lines with `{"prompt": {"text": ...}, "challenging": ...}` (RealToxicityPrompts), or with `{"prompt":
            "..."}` or `{"text": "..."}`; or a .txt file with one prompt on each line.
        challenging_only: return only prompts that are marked as challenging.
        limit: the largest number of prompts.

    Raises:
        InvalidInput: the file cannot be read, a line is malformed (the message names it), or no prompt is left.
    """
    with reading(f"cannot read prompts from {path}", instead="Give JSON lines"):
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    plain = Path(path).suffix == ".txt"
    found = [_prompt(line, n, path, plain) for n, line in enumerate(lines, start=1) if line.strip()]
    if challenging_only:
        found = [p for p in found if p.challenging]
    if not found:
        raise InvalidInput(f"{path} has no{' challenging' if challenging_only else ''} prompts")
    return found[:limit]


def _prompt(line: str, number: int, path: str | Path, plain: bool) -> Prompt:
    if plain:
        return Prompt(line.strip(), number)
    try:
        row = json.loads(line)
        inner = row.get("prompt", row)
        text = inner if isinstance(inner, str) else inner["text"]
        score = None if isinstance(inner, str) else inner.get("toxicity")
        if not isinstance(text, str) or not text.strip():
            raise KeyError("text")
        return Prompt(text, number, None if score is None else float(score), bool(row.get("challenging")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"{path} line {number}", why="it is not a JSON object with a prompt's text", instead="Correct or delete it"
        ) from error

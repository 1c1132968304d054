"""The prompts of a command: from arguments, a file, or standard input, cut to what the context holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unembed.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

    from unembed import LanguageModel

Prompts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PROMPT", help="Texts to run the model on; -: the lines of standard input.", show_default=False
    ),
]
PromptsFile = Annotated[
    Path | None,
    typer.Option("--prompts", metavar="FILE", help="A file with a prompt on each line.", show_default=False),
]
Last = Annotated[
    int | None,
    typer.Option(
        "--last", min=1, metavar="NUMBER", help="Only the last so many tokens of each prompt.", show_default=False
    ),
]


def prompts_of(texts: list[str] | None, file: Path | None) -> list[str]:
    """All prompts: those of the arguments, then those of the file; empty lines are left out.

    Raises:
        typer.BadParameter: there are none.
        InvalidInput: the file cannot be read.
    """
    found: list[str] = []
    for text in texts or []:
        found += [line for line in sys.stdin.read().splitlines() if line.strip()] if text == "-" else [text]
    if file is not None:
        try:
            found += [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise InvalidInput(f"cannot read prompts from {file}", why=why, instead="Check the path") from error
    if not found:
        raise typer.BadParameter("no prompt; give one or more, --prompts FILE, or - with text on standard input")
    return found


def last_tokens(lm: LanguageModel, prompt: str, last: int | None) -> str | Tensor:
    """The prompt, or with `last` its last tokens, behind the token that the tokenizer puts first, if it does."""
    if last is None:
        return prompt
    import torch

    ids = lm.encode(prompt)
    start = getattr(lm.tokenizer, "bos_token_id", None)
    if ids.shape[1] <= last or start is None or int(ids[0, 0]) != start:
        return ids[:, -last:]
    return torch.cat([ids[:, :1], ids[:, ids.shape[1] - last + 1 :]], dim=1)

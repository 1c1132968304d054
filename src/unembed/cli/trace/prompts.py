"""The prompts of a command: from arguments, a file, or standard input, cut to the length of the context."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from unembed.errors import InvalidInput, reading_fault
from unembed.options import Option

if TYPE_CHECKING:
    from torch import Tensor

    from unembed import LanguageModel

Prompts = Annotated[
    list[str] | None,
    Option("Texts to run the model on; -: the lines of standard input.", metavar="PROMPT", argument=True),
]
PromptsFile = Annotated[Path | None, Option("A file with a prompt on each line.", name="prompts")]


def prompts_of(texts: list[str] | None, file: Path | None, *, may_lack: bool = False) -> list[str]:
    """Return all prompts: those of the arguments, then those of the file; empty lines are left out.

    Args:
        texts: those of the arguments.
        file: a file with one on each line.
        may_lack: there need be none, because a conversation is given.

    Raises:
        typer.BadParameter: there are none.
        InvalidInput: the file cannot be read.
    """
    found: list[str] = []
    for text in texts or []:
        found += [line for line in sys.stdin.read().splitlines() if line.strip()] if text == "-" else [text]
    if file is not None:
        try:
            found += [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            instead = "Save it as UTF-8" if isinstance(error, ValueError) else "Check the path"
            raise InvalidInput(f"cannot read prompts from {file}", why=reading_fault(error), instead=instead) from error
    if not found and not may_lack:
        raise typer.BadParameter("no prompt; give one or more, --prompts FILE, or - with text on standard input")
    return found


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The part of a prompt to use if it is longer than the context."""

    PANEL: ClassVar[str | None] = None
    last: Annotated[int | None, Option("Only the last N tokens of each prompt.", low=1)] = None
    windows: Annotated[
        int | None, Option("Cut each prompt into windows of N tokens, each of which becomes a prompt.", low=1)
    ] = None

    def __post_init__(self) -> None:
        """Check that at most one is given.

        Raises:
            typer.BadParameter: both are.
        """
        if self.last is not None and self.windows is not None:
            raise typer.BadParameter("--last and --windows both cut the prompt; choose one")

    def pieces(self, lm: LanguageModel, prompts: list[str]) -> list[Piece]:
        """The prompts, or the part of each that is used."""
        from unembed.stream import last_tokens, prompt_windows

        if self.windows is not None:
            cut = [ids for prompt in prompts for ids in prompt_windows(lm, prompt, self.windows)]
            return [Piece(lm.decode(ids), ids) for ids in cut]
        if self.last is not None:
            return [Piece(prompt, last_tokens(lm, prompt, self.last)) for prompt in prompts]
        return [Piece(prompt) for prompt in prompts]


@dataclass(frozen=True, eq=False)
class Piece:
    """One run of the model: a text, and the tokens where they are not all of the text's own."""

    text: str
    tokens: Tensor | None = None

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
    from unembed.cli.option_groups import Conversation


@dataclass(frozen=True, kw_only=True)
class PromptTexts:
    """The texts to run the model on, and the part of each to use if it is longer than the context."""

    PANEL: ClassVar[str | None] = None
    prompts: Annotated[
        list[str] | None,
        Option("Texts to run the model on; -: the lines of standard input.", metavar="PROMPT", argument=True),
    ] = None
    file: Annotated[Path | None, Option("A file with a prompt on each line.", name="prompts")] = None
    last: Annotated[int | None, Option("Only the last N tokens of each prompt.", low=1)] = None
    windows: Annotated[
        int | None, Option("Cut each prompt into windows of N tokens, each of which becomes a prompt.", low=1)
    ] = None

    def __post_init__(self) -> None:
        """Check that the prompts are cut in at most one way.

        Raises:
            typer.BadParameter: in both.
        """
        if self.last is not None and self.windows is not None:
            raise typer.BadParameter("--last and --windows both cut the prompt; choose one")

    def texts(self, conversation: Conversation) -> list[str]:
        """Return all prompts: those of the arguments, then those of the file; empty lines are left out.

        Raises:
            typer.BadParameter: there are none, and the conversation has no earlier turns either.
            InvalidInput: the file cannot be read.
        """
        found: list[str] = []
        for text in self.prompts or []:
            found += _lines(sys.stdin.read()) if text == "-" else [text]
        if self.file is not None:
            try:
                found += _lines(self.file.read_text(encoding="utf-8-sig"))
            except (OSError, ValueError) as error:
                instead = "Save it as UTF-8" if isinstance(error, ValueError) else "Check the path"
                why = reading_fault(error)
                raise InvalidInput(f"cannot read prompts from {self.file}", why=why, instead=instead) from error
        if not found and conversation.messages is None:
            raise typer.BadParameter("no prompt; give one or more, --prompts FILE, or - with text on standard input")
        return found

    def cut(self, lm: LanguageModel, prompts: list[str]) -> list[Piece]:
        """Return the prompts, or the part of each that is used."""
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


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]

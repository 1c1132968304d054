"""Read the prompts of a command from arguments, a file, or standard input, and shorten them if requested."""

from __future__ import annotations

import sys
from collections.abc import Callable
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
    """Options for several prompts, and for the part of each prompt to use."""

    PANEL: ClassVar[str | None] = None
    prompts: Annotated[
        list[str] | None,
        Option(
            "Texts to run the model on; -: read a prompt from each line of standard input.",
            metavar="PROMPT",
            argument=True,
        ),
    ] = None
    file: Annotated[Path | None, Option("File with one prompt on each line.", name="prompts")] = None
    last: Annotated[int | None, Option("Use only this number of tokens at the end of each prompt.", low=1)] = None
    windows: Annotated[
        int | None,
        Option("Number of tokens in a window: cut each prompt into windows, and run the model on each.", low=1),
    ] = None

    def __post_init__(self) -> None:
        """Check that --last and --windows are not both given.

        Raises:
            typer.BadParameter: both are given.
        """
        if self.last is not None and self.windows is not None:
            raise typer.BadParameter("--last and --windows both cut the prompt; choose one")

    def texts(self, conversation: Conversation) -> list[str]:
        """Return the prompts from the arguments, then those from the file, without empty lines.

        Raises:
            typer.BadParameter: there is no prompt, and the conversation has no earlier messages either.
            InvalidInput: the file cannot be read.
        """
        found: list[str] = []
        for text in self.prompts or []:
            found += _lines_of("standard input", _standard_input) if text == "-" else [text]
        if (file := self.file) is not None:
            found += _lines_of(str(file), lambda: file.read_text(encoding="utf-8-sig"))
        if not found and conversation.messages is None:
            raise typer.BadParameter(
                "no prompt is given; give prompts, a file of prompts with --prompts, or - to read standard input"
            )
        return found

    def cut(self, lm: LanguageModel, prompts: list[str]) -> list[Piece]:
        """Return the inputs of the model: whole prompts, or their last tokens, or their windows."""
        from unembed.stream import last_tokens, prompt_windows

        if self.windows is not None:
            cut = [ids for prompt in prompts for ids in prompt_windows(lm, prompt, self.windows)]
            return [Piece(lm.decode(ids), ids) for ids in cut]
        if self.last is not None:
            return [Piece(prompt, last_tokens(lm, prompt, self.last)) for prompt in prompts]
        return [Piece(prompt) for prompt in prompts]


@dataclass(frozen=True, eq=False)
class Piece:
    """The input of one forward pass: a text, and token ids if not all tokens of the text are used."""

    text: str
    tokens: Tensor | None = None


def _lines_of(source: str, read: Callable[[], str]) -> list[str]:
    """Return the lines of a text that are not empty; a form feed or a Unicode line separator does not end a line."""
    try:
        return [line for line in read().split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        instead = "Save it as UTF-8" if isinstance(error, ValueError) else "Check the path"
        raise InvalidInput(f"cannot read prompts from {source}", why=reading_fault(error), instead=instead) from error


def _standard_input() -> str:
    """Return standard input, decoded as UTF-8 like a file of prompts, independently of the locale."""
    return sys.stdin.buffer.read().decode("utf-8-sig").replace("\r\n", "\n")

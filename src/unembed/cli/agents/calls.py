"""Calls of tools: one at a time, on models that stay open; answers are the terminal's text, in pages."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from unembed.cli.agents.tools import MODEL, Tool, checked, tools, with_models
from unembed.cli.option_groups import Opening, Output
from unembed.errors import IndexFault, InvalidInput, UnembedError
from unembed.results import visible
from unembed.validation import valid_seed

if TYPE_CHECKING:
    from pathlib import Path

    from unembed import LanguageModel

LARGEST = 4_000
"""Characters of an answer; the rest is read by `more`."""
KEPT = 50
"""Answers whose further pages can be read."""
_END_OF_SENTENCE = re.compile(r"\s*\n\s*")


@dataclass(frozen=True, kw_only=True)
class OpenModel(Opening):
    """A way of opening that gives a model which is open already."""

    lm: LanguageModel | None = None

    def open(self, seed: int | None = None) -> LanguageModel:
        """The model itself; torch's random numbers start from the seed."""
        assert self.lm is not None, "it was opened before the call"
        if seed is not None:
            import torch

            torch.manual_seed(valid_seed(seed))  # pyright: ignore[reportUnknownMemberType]
        return self.lm


class Calls:
    """The tools, the open model, and the answers that have further pages."""

    def __init__(self, opening: Opening, folder: Path | None = None) -> None:
        """Prepare the tools; the model is opened by the first call that needs it.

        Args:
            opening: the model that calls ask where they name none, and how it is opened.
            folder: the index of that model; its ready index when None.
        """
        from unembed.models import SHIPPED

        self.opening, self.folder, self.tools = opening, folder, tools()
        self.models = {opening.model: "the default"} | {
            name: "ships with unembed" for name in SHIPPED if name != opening.model
        }
        self._open: tuple[str, LanguageModel] | None = None
        self._pages: OrderedDict[str, list[str]] = OrderedDict()
        self._count = 0
        self._one_at_a_time = threading.Lock()

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The first page of a tool's answer.

        Raises:
            UnembedError: there is no such tool, or an argument is not one that it takes; the message says what is.
        """
        if name not in self.tools:
            raise InvalidInput(f"tool {name!r}", why="no tool has this name", instead="List the tools")
        tool = self.tools[name]
        checked(tool, arguments, self.models)
        with self._one_at_a_time:
            return self._page_of(self._run(tool, arguments))

    def more(self, handle: str, page: int) -> str:
        """A further page of an answer.

        Raises:
            InvalidInput: there is no such answer any more, or no such page of it.
        """
        pages = self._pages.get(handle)
        if pages is None:
            raise InvalidInput(
                f"answer {handle!r}", why=f"it is not among the last {KEPT} answers", instead="Call its tool again"
            )
        if not 1 <= page <= len(pages):
            raise InvalidInput(f"page {page} of answer {handle}", why=f"it has pages 1 to {len(pages)}")
        return pages[page - 1]

    def _run(self, tool: Tool, arguments: Mapping[str, Any]) -> str:
        """Return what the command prints for a person, without colour."""
        name = str(arguments.get(MODEL, self.opening.model))
        lm = self._model(name)
        opening: dict[str, Any] = vars(with_models(self.opening, name)) | {"lm": lm}
        printed, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
            try:
                slots = tool.slots(arguments, OpenModel(**opening), Output(plain=True))
                if tool.takes_index:
                    slots["folder"] = self._index_of(lm, name)
                    slots |= {MODEL: None} if MODEL in tool.command.slots else {}
                tool.command.function(**slots)
            except typer.BadParameter as error:
                raise InvalidInput(f"{tool.name}: {error.format_message()}") from None
            except typer.Exit:
                pass
        sys.stderr.write(said.getvalue())
        return f"{printed.getvalue().strip()}\n"

    def _model(self, name: str) -> LanguageModel:
        """The open model of a name; one is open at a time."""
        if self._open is None or self._open[0] != name:
            self._open = None
            with contextlib.redirect_stdout(sys.stderr):
                self._open = name, with_models(self.opening, name).open()
        return self._open[1]

    def _index_of(self, lm: LanguageModel, name: str) -> Path:
        import unembed

        if self.folder is not None and name == self.opening.model:
            return self.folder
        if (index := unembed.cached_index(lm)) is not None:
            return index.path
        raise IndexFault(
            f"no index of {name} is open",
            why="triggers and searches come from a corpus",
            instead="Ask the user to build one with `unembed index build`, and to start `unembed mcp --index DIR`",
        )

    def _page_of(self, text: str) -> str:
        """The first page of a text; of a longer one, the handle of the rest stands at its end."""
        if len(text) <= LARGEST:
            return text
        self._count += 1
        handle = f"a{self._count}"
        room, pages = LARGEST - 120, [""]
        for line in text.splitlines(keepends=True):
            for piece in (line[i : i + room] for i in range(0, len(line), room)):
                if len(pages[-1]) + len(piece) > room:
                    pages.append("")
                pages[-1] += piece
        last = len(pages)
        ends = [f"\n(page {i} of {last}; more(handle={handle!r}, page={i + 1}) has the next)\n" for i in range(1, last)]
        self._pages[handle] = [
            page + end for page, end in zip(pages, [*ends, f"\n(page {last} of {last})\n"], strict=True)
        ]
        while len(self._pages) > KEPT:
            self._pages.popitem(last=False)
        return self._pages[handle][0]


def answer(calls: Calls, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the answer to a call, and whether it is an error: one line that says what to do."""
    try:
        if name == "more":
            return calls.more(str(arguments.get("handle", "")), _page_number(arguments.get("page", 2))), False
        return calls.call(name, arguments), False
    except UnembedError as error:
        return _in_one_line(str(error)), True
    except (MemoryError, RuntimeError, ValueError, TypeError, KeyError, IndexError, OSError) as error:
        return _in_one_line(f"{name} failed: {type(error).__name__}: {error}. Try other arguments"), True


def _page_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"page {str(value)[:40]!r}", why="it is not a whole number")
    return value


def _in_one_line(text: str) -> str:
    return visible(_END_OF_SENTENCE.sub(" ", text)[: LARGEST - 1], prose=True)

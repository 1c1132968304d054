"""Run an agent's tool calls one at a time, on a model that stays loaded; return text in pages, and pictures."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import typer

from unembed.cli.agents.pictures import pictures_of
from unembed.cli.agents.tools import MODEL, Tool, checked, tools
from unembed.cli.option_groups import Opening, Output
from unembed.cli.progress import listening
from unembed.errors import IndexFault, InvalidInput, UnembedError
from unembed.results import visible
from unembed.validation import valid_seed

if TYPE_CHECKING:
    from pathlib import Path

    from unembed import LanguageModel
    from unembed.document import Report

LARGEST = 4_000
"""Maximum number of characters of an answer; the tool `more` returns the rest."""
KEPT = 50
"""Number of answers of several pages that are stored; when there are more, the oldest is deleted."""
_END_OF_SENTENCE = re.compile(r"\s*\n\s*")


@dataclass(frozen=True, kw_only=True)
class OpenModel(Opening):
    """Model options (`Opening`) whose `open` returns a model that is already loaded."""

    lm: LanguageModel | None = None

    def open(self, seed: int | None = None) -> LanguageModel:
        """Return the loaded model, and seed torch's random numbers."""
        assert self.lm is not None, "it was opened before the call"
        if seed is not None:
            import torch

            torch.manual_seed(valid_seed(seed))  # pyright: ignore[reportUnknownMemberType]
        return self.lm


@dataclass(frozen=True, kw_only=True)
class Collected(Output):
    """Output options (`Output`) that store the reports in a list instead of printing them."""

    plain: bool = True
    reports: list[Report] = field(default_factory=list[Any])

    def takes(self, report: Report) -> bool:
        """Add the report to `reports`."""
        self.reports.append(report)
        return True


@dataclass(frozen=True)
class Answer:
    """The result of a call: text and PNG pictures. If `failed`, the text is an error message."""

    text: str
    pictures: tuple[bytes, ...] = ()
    failed: bool = False


class Cancelled(UnembedError):
    """Raised during a call if the client has cancelled it."""


@dataclass
class UnderWay:
    """A running call: the function that reports its progress, and an event that is set when the client cancels it."""

    report: Callable[[str, int, int | None], None] = lambda _stage, _done, _total: None
    cancelled: threading.Event = field(default_factory=threading.Event)

    def progress(self, stage: str, done: int, total: int | None) -> None:
        """Report that `done` of `total` steps of a stage are done.

        Raises:
            Cancelled: the client has cancelled the call.
        """
        self.check()
        self.report(stage, done, total)

    def check(self, *_: object) -> None:
        """Raise an error if the call was cancelled.

        Raises:
            Cancelled: the client has cancelled the call.
        """
        if self.cancelled.is_set():
            raise Cancelled("this call was cancelled")

    @contextlib.contextmanager
    def watched(self, lm: LanguageModel) -> Generator[None]:
        """Context manager inside which each forward pass and each progress report first checks for cancellation."""
        hook = lm.hf.register_forward_pre_hook(self.check)
        try:
            with listening(self.progress):
                yield
        finally:
            hook.remove()


class Calls:
    """Runs calls of tools; stores the loaded model, and the answers that have more than one page."""

    def __init__(self, opening: Opening, folder: Path | None = None) -> None:
        """Prepare the tools. Models are loaded when a call needs them.

        Args:
            opening: the default model of calls, and how to open it.
            folder: the folder of that model's index; None for the default index in the cache folder.
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

    def open_default(self) -> None:
        """Load the default model.

        Raises:
            ModelUnavailable: the model cannot be loaded.
        """
        self._model(self.opening.model)

    def call(self, name: str, arguments: Mapping[str, Any], under_way: UnderWay | None = None) -> Answer:
        """Run a tool, and return the first page of its answer with its pictures.

        Raises:
            UnembedError: there is no such tool, an argument is invalid, or the tool fails.
        """
        if name not in self.tools:
            raise InvalidInput(f"tool {name!r}", why="no tool has this name", instead="List the tools")
        tool = self.tools[name]
        checked(tool, arguments, self.models)
        with self._one_at_a_time:
            text, pictures = self._run(tool, arguments, under_way or UnderWay())
            return Answer(self._page_of(text), pictures)

    def more(self, handle: str, page: int) -> str:
        """Return another page of an answer. `handle` identifies the answer; the end of its first page states it.

        Raises:
            InvalidInput: the answer is no longer stored, or has no such page.
        """
        pages = self._pages.get(handle)
        if pages is None:
            raise InvalidInput(
                f"answer {handle!r}", why=f"it is not among the last {KEPT} answers", instead="Call its tool again"
            )
        if not 1 <= page <= len(pages):
            raise InvalidInput(f"page {page} of answer {handle}", why=f"it has pages 1 to {len(pages)}")
        return pages[page - 1]

    def _run(self, tool: Tool, arguments: Mapping[str, Any], under_way: UnderWay) -> tuple[str, tuple[bytes, ...]]:
        """Run a command, and return its terminal output and its figures.

        The output has no colours, and in each section the text stands above the tables.
        """
        from unembed.cli.answer import with_sentences_first
        from unembed.cli.output import show

        name = str(arguments.get(MODEL, self.opening.model))
        lm = self._model(name)
        opening: dict[str, Any] = vars(replace(self.opening, model=name)) | {"lm": lm}
        printed, said, output = io.StringIO(), io.StringIO(), Collected()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said), under_way.watched(lm):
            try:
                slots = tool.slots(arguments, OpenModel(**opening), output)
                if tool.takes_index:
                    slots["folder"] = self._index_of(lm, name)
                    slots |= {MODEL: None} if MODEL in tool.command.slots else {}
                tool.command.function(**slots)
            except typer.BadParameter as error:
                raise InvalidInput(f"{tool.name}: {error.format_message()}") from None
            except typer.Exit:
                pass
            for report in output.reports:
                show(lambda width, one=report: with_sentences_first(one, width), plain=True)
        sys.stderr.write(said.getvalue())
        return f"{printed.getvalue().strip()}\n", pictures_of(output.reports)

    def _model(self, name: str) -> LanguageModel:
        """Return the model with this name. If it is not the loaded model, it is loaded in place of that one."""
        if self._open is None or self._open[0] != name:
            self._open = None
            with contextlib.redirect_stdout(sys.stderr):
                self._open = name, replace(self.opening, model=name).open()
        return self._open[1]

    def _index_of(self, lm: LanguageModel, name: str) -> Path:
        import unembed

        if self.folder is not None and name == self.opening.model:
            return self.folder
        if (index := unembed.cached_index(lm)) is not None:
            return index.path
        raise IndexFault(
            f"no index of {name} is open",
            why="triggers and searches are read from an index of a corpus",
            instead="Ask the user to build one with `unembed index build`, and to start `unembed mcp --index DIR`",
        )

    def _page_of(self, text: str) -> str:
        """Return the first page of a text, and store all pages.

        The page ends with a handle, with which a client requests the next page from the tool `more`.
        """
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


def answer(calls: Calls, name: str, arguments: Mapping[str, Any], under_way: UnderWay | None = None) -> Answer:
    """Run a call and return its answer. If the call raises an exception, the answer is a one-line error message."""
    try:
        if name == "more":
            return Answer(calls.more(str(arguments.get("handle", "")), _page_number(arguments.get("page", 2))))
        return calls.call(name, arguments, under_way)
    except UnembedError as error:
        return Answer(_in_one_line(str(error)), failed=True)
    except (MemoryError, RuntimeError, ValueError, TypeError, KeyError, IndexError, OSError) as error:
        text = f"{name} failed: {type(error).__name__}: {error}. Try other arguments"
        return Answer(_in_one_line(text), failed=True)


def _page_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"page {str(value)[:40]!r}", why="it is not a whole number")
    return value


def _in_one_line(text: str) -> str:
    return visible(_END_OF_SENTENCE.sub(" ", text)[: LARGEST - 1], prose=True)

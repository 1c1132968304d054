"""The `unembed` command: register its subcommands, and print every error as one line."""

from __future__ import annotations

import codecs
import importlib
import json
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from unembed import __version__
from unembed.analyses import listings
from unembed.cli import help_text
from unembed.cli.analysis import command_of
from unembed.cli.command import COMMANDS, add_command
from unembed.errors import OutOfMemory, UnembedError, first_sentence
from unembed.results import visible


class OneLineErrors(TyperGroup):
    """A group of commands that fail with one line on stderr and exit status 1, or 130 if interrupted."""

    def __init__(self, *given: Any, **options: Any) -> None:
        """Create the group, and give the help texts of its commands the same style."""
        super().__init__(*given, **options)
        help_text.tidy(self)

    def make_context(self, *given: Any, **options: Any) -> Any:
        """Parse the arguments. Ctrl-C during the parsing, which can take long, also ends with one line."""
        try:
            return super().make_context(*given, **options)
        except KeyboardInterrupt:
            _end("Interrupted.", 130)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an unexpected error keeps its traceback, because it is a bug."""
        try:
            return super().invoke(ctx)
        except UnembedError as error:
            _end(error, 1)
        except KeyboardInterrupt:
            _end("Interrupted.", 130)
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            _end(_out_of_memory(error), 1)


def _end(message: object, status: int) -> NoReturn:
    # Control characters in a prompt or a path are replaced by visible symbols, because a terminal would execute them.
    print(f"unembed: {visible(str(message), prose=True)}", file=sys.stderr)
    raise typer.Exit(status)


def _is_out_of_memory(error: BaseException) -> bool:
    """Return True for an out-of-memory error, judged by its class name and message, to avoid importing torch."""
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "out of memory" in text
        or "can't allocate memory" in text
        or "cannot allocate memory" in text
        or "not enough memory" in text
    )


def _out_of_memory(error: BaseException) -> OutOfMemory:
    return OutOfMemory(
        "not enough memory",
        why=first_sentence(error) if str(error) else "the machine has no more to give",
        instead="Use --dtype bfloat16, a shorter prompt, or a smaller model",
    )


def _print_version(wanted: bool) -> bool:
    if wanted:
        print(f"unembed {__version__}")
        raise typer.Exit()
    return wanted


app = typer.Typer(
    name="unembed",
    cls=OneLineErrors,
    help="See how a transformer language model builds its prediction, read in the model's own vocabulary.",
    epilog="Exit status: 0 done, 1 failed (one line gives the reason), 2 wrong usage, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    # Characters that the terminal's encoding lacks are printed as escapes, because Python would raise an error by
    # default.
    codecs.register_error("unembed.escape", _escape)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="unembed.escape")  # pyright: ignore


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Return JSON escapes of the characters that stdout cannot encode, so that JSON output stays valid.

    Python's own escapes (`backslashreplace`) use hexadecimal codes after an x, which JSON does not allow.
    """
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


_GROUPS = {
    "atlas": "Describe the memories (FFN neurons) of a model by rules that run, and test every description.",
    "annotate": "Collect people's names for the concepts of memories (FFN neurons), and measure agreement.",
    "index": "Build, query and check an index: every key's triggers over a corpus, and every value's top tokens.",
    "circuits": "Analyse attention heads as circuits: what they match, what they move, how they compose.",
    "toxicity": "Select values of memories (FFN neurons) that suppress toxic text, and evaluate them.",
    "early-exit": "Fit rules for early exit, evaluate them, and generate with them.",
}
_HANDWRITTEN = (
    *("trace.command", "models", "train", "doctor", "serve", "mcp", "report"),
    *("annotate", "index_build", "index_export"),
)
"""Modules of this subpackage that declare commands other than those of the analyses."""


def _group(name: str) -> typer.Typer:
    group = typer.Typer(name=name, no_args_is_help=True, help=_GROUPS.get(name, "Analyses of other packages."))
    app.add_typer(group)
    return group


def _fill() -> None:
    """Register all commands, in the order in which help lists them."""
    groups: dict[str, typer.Typer] = {name: _group(name) for name in _GROUPS}
    for module in _HANDWRITTEN:
        importlib.import_module(f"unembed.cli.{module}")
    first = [one for one in COMMANDS if one.words == "trace" or " " in one.words]  # listed first in their group
    for one in (*first, *map(command_of, listings()), *(one for one in COMMANDS if one not in first)):
        *group, name = one.words.split()
        if group and group[0] not in groups:
            groups[group[0]] = _group(group[0])
        add_command(groups[group[0]] if group else app, name, one)


_fill()

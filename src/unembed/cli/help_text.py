"""Use one style for placeholders, such as NUMBER, in the help of all commands, and print help without padding."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from typing import Any

import typer
from typer.core import TyperArgument, TyperOption


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield name (such as "index build") and command for each command in a group and its subgroups."""
    for name, command in group.commands.items():
        words = f"{before} {name}".strip()
        yield words, command
        if hasattr(command, "commands"):
            yield from commands(command, words)


def tidy(group: Any) -> None:
    """Set the placeholder of every parameter's value, in one style: NUMBER, TEXT, FILE ..."""
    for _, command in [("", group), *commands(group)]:
        command.format_help = _without_trailing_spaces(command.format_help)
        shown = command.get_help_option(typer.Context(command, help_option_names=["-h", "--help"]))
        for parameter in [shown, *command.params]:
            if isinstance(parameter, TyperArgument):
                parameter.metavar = (parameter.metavar or parameter.name).upper()
            elif isinstance(parameter, TyperOption) and parameter.metavar is None:
                parameter.metavar = _word(parameter)


def _without_trailing_spaces(format_help: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Wrap a function that prints help: written to a pipe or file, its lines have no trailing spaces."""

    def formatted(context: Any, formatter: Any) -> None:
        if sys.stdout.isatty():
            format_help(context, formatter)
            return
        with redirect_stdout(_Captured(sys.stdout.encoding)) as shown:
            format_help(context, formatter)
        print("\n".join(line.rstrip() for line in shown.getvalue().splitlines()))

    return formatted


class _Captured(io.StringIO):
    """A buffer with the encoding of stdout, so that rich draws the same lines as on stdout."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._encoding


def _word(option: TyperOption) -> str | None:
    """Return the placeholder for an option's value; None to use typer's."""
    kind = option.type_descriptor
    if option.is_flag:
        return ""
    if kind.is_choice:
        return " | ".join(map(str, kind.choices or ()))  # with spaces, so that a narrow column breaks between words
    bare = option.bare_type().removeprefix("list[").removesuffix("]")
    return {"int": "NUMBER", "float": "NUMBER", "str": "TEXT", "Path": "FILE"}.get(bare)

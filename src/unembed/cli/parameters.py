"""A declared option as the command line takes it: its spellings, its place in the help, and how its text is read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import typer
from typer.core import TyperCommand

from unembed.analyses import Parameter
from unembed.errors import InvalidInput

_TYPES = {"int": int, "float": float, "str": str, "bool": bool, "path": Path, "text": str}
_NUMBERS = re.compile(r"\d{1,6}")


def as_typer(parameter: Parameter) -> inspect.Parameter:
    """The parameter of a command's function from which typer makes the option or argument."""
    option, kind = parameter.option, _TYPES[parameter.kind]
    kind = Literal[*parameter.choices] if parameter.choices else kind
    kind = list[kind] if parameter.repeated else kind
    default = parameter.default or None if parameter.kind == "text" or parameter.repeated else parameter.default
    annotation = Annotated[
        kind if parameter.required or default is not None else Optional[kind],  # noqa: UP045  # kind is a value
        typer.Argument(metavar=option.metavar or None, help=option.help, show_default=False)
        if parameter.is_argument
        else typer.Option(
            *spellings(parameter),
            min=option.low if parameter.kind == "float" or option.low is None else int(option.low),
            max=option.high if parameter.kind == "float" or option.high is None else int(option.high),
            metavar=option.metavar or None,
            help=option.help,
            show_default=default not in (None, "") and parameter.kind != "path",
        ),
    ]
    empty = inspect.Parameter.empty
    return inspect.Parameter(
        parameter.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=empty if parameter.required else default,
        annotation=annotation,
    )


def spellings(parameter: Parameter) -> tuple[str, ...]:
    """How an option is written: `--top` and `-k`; a switch that is on has its opposite too."""
    long = "--" + parameter.name.strip("_").replace("_", "-")
    if parameter.option.off or (parameter.kind == "bool" and parameter.default):
        long = f"{long}/{parameter.option.off or f'--no-{long[2:]}'}"
    return (long, f"-{parameter.option.letter}") if parameter.option.letter else (long,)


def values(parameters: Sequence[Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    """What the function takes: texts read by their parser, the rest as it is.

    Raises:
        typer.BadParameter: a text is not of the form.
    """
    found: dict[str, Any] = {}
    for parameter in parameters:
        value, read = given[parameter.name], parameter.option.parse
        if read is not None and value is None:
            value = parameter.default
        elif read is not None:
            try:
                value = [read(text) for text in value] if parameter.repeated else read(value)
            except InvalidInput as error:
                hint = parameter.name.upper() if parameter.is_argument else spellings(parameter)[0]
                raise typer.BadParameter(error.what, param_hint=hint) from None
        elif parameter.repeated:
            value = tuple(value or ())
        found[parameter.name] = value
    return found


def command_class(parameters: Sequence[Parameter]) -> type[TyperCommand]:
    """The class of a command that understands former spellings, and a part as two numbers (`1 5` for `L1H5`)."""
    former = {alias: spellings(parameter)[0] for parameter in parameters for alias in parameter.option.aliases}

    class Command(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            words = [_renamed(word, former) for word in args]
            return super().parse_args(ctx, _joined(words) if names_part else words)

    names_part = any(parameter.is_argument and parameter.kind == "text" for parameter in parameters)
    return Command


def _renamed(word: str, former: Mapping[str, str]) -> str:
    name, equals, value = word.partition("=")
    return f"{former[name]}{equals}{value}" if name in former else word


def _joined(words: list[str]) -> list[str]:
    """The words with the first two whole numbers in a row made one: `1.5`, which names a part of layer 1."""
    for i in range(len(words) - 1):
        is_value = i > 0 and words[i - 1].startswith("-")
        if not is_value and all(_NUMBERS.fullmatch(word) for word in words[i : i + 2]):
            return [*words[:i], f"{words[i]}.{words[i + 1]}", *words[i + 2 :]]
    return words

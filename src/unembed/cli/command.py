"""Make a command-line command from a function whose parameters are annotated with `Option`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, cast, get_type_hints

import typer
from typer.core import TyperCommand

from unembed.errors import InvalidInput
from unembed.names import parse_memory
from unembed.options import Parameter, parameter_of

_TYPES = {"int": int, "float": float, "str": str, "bool": bool, "path": Path, "text": str}


@dataclass(frozen=True)
class Command:
    """A command, before it is registered with typer.

    Attributes:
        words: the name of the command, such as "index build".
        function: the function to call, with a keyword argument for each of `slots`.
        slots: maps the name of an argument to its `Parameter`, or to a group of options (a dataclass instance with the
            defaults).
        help: the text that `--help` prints.
        example: an example command line.
    """

    words: str
    function: Callable[..., None]
    slots: Mapping[str, Any]
    help: str
    example: str


AT_END: list[Callable[[], object]] = []
"""Functions that print notes on stderr. They are called after the command, but not if it fails: then the error message
is the only line."""
COMMANDS: list[Command] = []
"""The commands that the decorator `command` declared, in the order in which their modules are imported."""


def command(words: str, example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a function to make it a command.

    A parameter whose default is a dataclass instance, such as `Opening()`, stands for all options of that group. The
    other arguments are those of `Command`.
    """

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        given = inspect.signature(function).parameters.values()
        slots = {p.name: p.default if is_dataclass(p.default) else parameter_of(p, function) for p in given}
        COMMANDS.append(Command(words, function, slots, inspect.getdoc(function) or "", example))
        return function

    return declare


def add_command(app: typer.Typer, name: str, given: Command) -> None:
    """Add a command to a typer group; `name` is the last word of the command."""
    owned = {key: fields_of(slot) for key, slot in given.slots.items() if not isinstance(slot, Parameter)}
    parameters = [p for key, slot in given.slots.items() for p in owned.get(key, [slot])]

    def run(**texts: Any) -> None:
        read = {p.name: value_of(p, texts[p.name]) for p in parameters}
        chosen = {
            key: type(slot)(**{p.name: read[p.name] for p in owned[key]}) if key in owned else read[key]
            for key, slot in given.slots.items()
        }
        AT_END.clear()
        given.function(**chosen)
        for say in AT_END:
            say()

    panels = {p.name: given.slots[key].PANEL for key, own in owned.items() for p in own}
    signature = inspect.Signature([_as_typer(p, panels.get(p.name)) for p in parameters])
    run.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    end = f"Try: `{given.example}`" if given.example else None
    app.command(name, cls=_class(parameters), help=given.help, epilog=end)(run)


def spellings(parameter: Parameter) -> tuple[str, ...]:
    """Return the names of an option, such as `--top` and `-k`.

    A switch that is on by default also has its `--no-...` form: `--browser/--no-browser`.
    """
    option = parameter.option
    long = "--" + (option.name or parameter.name).strip("_").replace("_", "-")
    if option.off or (parameter.kind == "bool" and parameter.default):
        long = f"{long}/{option.off or f'--no-{long[2:]}'}"
    return (long, f"-{option.letter}") if option.letter else (long,)


def value_of(parameter: Parameter, given: Any) -> Any:
    """Return a parameter's value for the function: the default if it was not given, else converted by `Option.parse`.

    Raises:
        typer.BadParameter: `Option.parse` rejected the text.
    """
    read = parameter.option.parse
    if given is None or (parameter.repeated and not given):
        return parameter.default
    if read is None:
        return given
    try:
        return [read(text) for text in given] if parameter.repeated else read(given)
    except InvalidInput as error:
        word = (parameter.option.metavar or parameter.name).upper()
        hint = word if parameter.argument else spellings(parameter)[0]
        message = f"{error.what}. {error.instead}" if error.instead else error.what
        raise typer.BadParameter(message, param_hint=hint) from None


def fields_of(group: Any) -> list[Parameter]:
    """Return the options of a group (a dataclass instance); the instance's values are their defaults."""
    of = cast(type[Any], type(group))
    hints, kind = get_type_hints(of, include_extras=True), inspect.Parameter.KEYWORD_ONLY
    given = [
        inspect.Parameter(f.name, kind, default=getattr(group, f.name), annotation=hints[f.name]) for f in fields(group)
    ]
    return [parameter_of(one, of) for one in given]


def _as_typer(parameter: Parameter, panel: str | None) -> inspect.Parameter:
    """Convert a parameter to the form that typer understands; `panel` is its heading in the help."""
    option, kind = parameter.option, _TYPES[parameter.kind]
    kind = Literal[*parameter.choices] if parameter.choices else kind
    kind = list[kind] if parameter.repeated else kind
    default = None if parameter.kind == "text" or parameter.repeated else parameter.default
    ends = [end if end is None or parameter.kind == "float" else int(end) for end in (option.low, option.high)]
    shared: dict[str, Any] = {"metavar": option.metavar or None, "help": option.help, "hidden": option.hidden}
    annotation = Annotated[
        kind if parameter.required or default is not None else Optional[kind],  # noqa: UP045  # kind is a value
        typer.Argument(show_default=False, **shared)
        if parameter.argument
        else typer.Option(
            *spellings(parameter),
            min=ends[0],
            max=ends[1],
            rich_help_panel=panel,
            show_default=default not in (None, "", False),
            # In commands that read an index, --model has no default (the index names its model), so the environment
            # variable must not set it either.
            envvar=option.variable if option.variable and default is not None else None,
            show_envvar=False,
            **shared,
        ),
    ]
    empty = inspect.Parameter.empty
    return inspect.Parameter(
        parameter.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=empty if parameter.required else default,
        annotation=annotation,
    )


def _class(parameters: Sequence[Parameter]) -> type[TyperCommand]:
    """Return a typer command class that also accepts former option names, and `1 5` in place of `L1H5` or `L1M5`."""
    former: dict[str, str] = {}
    for parameter in parameters:  # if two options share a former name, it means the first
        for alias in parameter.option.aliases:
            former.setdefault(alias, spellings(parameter)[0])
    names_part = any(parameter.argument and parameter.kind == "text" for parameter in parameters)

    class Command(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            own = {name for one in self.params for name in (*one.opts, *one.secondary_opts)}
            words = [word if word.partition("=")[0] in own else _renamed(word, former) for word in args]
            words = [_not_an_option(word) for word in words]
            return super().parse_args(ctx, _joined(words) if names_part else words)

    return Command


def _renamed(word: str, former: Mapping[str, str]) -> str:
    name, equals, value = word.partition("=")
    return f"{former[name]}{equals}{value}" if name in former else word


def _not_an_option(word: str) -> str:
    """Replace the hyphen of a memory such as -L5M278 by U+2212, so that it is not parsed as an option."""
    return f"\u2212{word[1:]}" if word.startswith("-L") and parse_memory(word) is not None else word


def _joined(words: list[str]) -> list[str]:
    """Join the first two consecutive whole numbers: `1 5` becomes `1.5`, which names a head or memory of layer 1."""
    for i in range(len(words) - 1):
        is_value = i > 0 and words[i - 1].startswith("-")
        if not is_value and all(re.fullmatch(r"\d{1,9}", word) for word in words[i : i + 2]):
            return [*words[:i], f"{words[i]}.{words[i + 1]}", *words[i + 2 :]]
    return words

"""Derive an agent's tools from the analysis commands: their names, JSON schemas, and how arguments are parsed.

Options through which a tool could read or write a file that the user did not name are left out: paths, corpora, and
vectors from files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unembed.cli.command import COMMANDS, Command, fields_of, value_of
from unembed.cli.option_groups import Opening, Output
from unembed.errors import InvalidInput
from unembed.options import Parameter

_FILES = frozenset({"corpus", "trigger_corpus", "add_vector", "replace_stream", "scorer", "lens"})
"""Options whose value is text, but may be the path of a file; a tool does not have them."""
_NONE_OF = frozenset({"next_steps", "recompute"})
"""Switches that have no effect in a tool."""
_JSON = {"int": "integer", "float": "number", "str": "string", "text": "string", "bool": "boolean"}
MODEL = "model"


@dataclass(frozen=True)
class Tool:
    """A command that an agent can call.

    Attributes:
        name: the words of the command, joined by hyphens: "circuits-head".
        command: the command to run.
        parameters: the options, by the names that a client uses.
        takes_index: True if the command's first argument is the folder of an index, which the server fills in.
    """

    name: str
    command: Command
    parameters: Mapping[str, Parameter]
    takes_index: bool

    def schema(self, models: Mapping[str, str]) -> dict[str, Any]:
        """Return the JSON schema of the arguments.

        Args:
            models: the names of the models that a client may choose, each with a short description.
        """
        known = ", ".join(f"{name} ({what})" for name, what in models.items())
        properties = {name: _schema_of(one) for name, one in self.parameters.items()}
        properties[MODEL] = {
            "type": "string",
            "enum": list(models),
            "default": next(iter(models)),
            "description": f"The model to ask: {known}.",
        }
        required = [name for name, one in self.parameters.items() if one.required or name == "prompt"]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def slots(self, arguments: Mapping[str, Any], opening: Opening, output: Output) -> dict[str, Any]:
        """Convert the arguments of a call to those of the command's function.

        Raises:
            typer.BadParameter: an argument cannot be parsed.
        """
        by_own_name = {one.name: arguments[name] for name, one in self.parameters.items() if name in arguments}

        def value(one: Parameter) -> Any:
            given = by_own_name.get(one.name)
            return value_of(one, [given] if one.repeated and isinstance(given, str) else given)

        made: dict[str, Any] = {}
        for key, slot in self.command.slots.items():
            if isinstance(slot, Parameter):
                made[key] = value(slot)
            elif isinstance(slot, Opening):
                made[key] = opening
            elif isinstance(slot, Output):
                made[key] = output
            else:
                made[key] = type(slot)(**{one.name: value(one) for one in fields_of(slot)})
        return made


def tools() -> dict[str, Tool]:
    """Return the tools by name: the commands that analyse a model or an index, in the order of the help."""
    from unembed.analyses import listings
    from unembed.cli import commands  # importing it declares the commands that are not generated from analyses
    from unembed.cli.analysis import command_of

    assert commands.app is not None
    found = (_tool(one) for one in (*COMMANDS, *map(command_of, listings())))
    return {one.name: one for one in found if one is not None}


def _tool(command: Command) -> Tool | None:
    """Return the tool of a command; None if the command is not an analysis, or requires a path."""
    slots = command.slots
    takes_index = "folder" in slots
    if not any(isinstance(slot, Output) for slot in slots.values()):
        return None
    if not takes_index and not any(isinstance(slot, Opening) for slot in slots.values()):
        return None
    every = [
        one
        for slot in slots.values()
        if not isinstance(slot, Opening | Output)
        for one in ([slot] if isinstance(slot, Parameter) else fields_of(slot))
    ]
    own = [one for one in every if not (takes_index and one.name in ("folder", "model"))]
    if any(one.required and one.kind == "path" for one in own):
        return None
    shown = [one for one in own if _is_for_a_client(one)]
    return Tool(command.words.replace(" ", "-"), command, {_name(one): one for one in shown}, takes_index)


def _is_for_a_client(one: Parameter) -> bool:
    return one.kind != "path" and one.name not in _FILES | _NONE_OF and not one.option.hidden


def _name(one: Parameter) -> str:
    """Return the name of a tool's argument for an option: `prompt` for `prompts` (a tool takes one), else its name."""
    return "prompt" if one.name == "prompts" else (one.option.name or one.name).strip("_").replace("-", "_")


def _schema_of(one: Parameter) -> dict[str, Any]:
    """Return the JSON schema of an option."""
    option = one.option
    schema: dict[str, Any] = {"type": _JSON[one.kind]}
    if one.choices:
        schema["enum"] = list(one.choices)
    if one.kind in ("int", "float"):
        schema |= {"minimum": option.low} if option.low is not None else {}
        schema |= {"maximum": option.high} if option.high is not None else {}
    if one.repeated and _name(one) != "prompt":
        schema = {"type": "array", "items": schema}
    elif one.default is not None and one.kind != "text":
        schema["default"] = one.default
    return schema | {"description": option.help}


def checked(tool: Tool, arguments: Mapping[str, Any], models: Mapping[str, str]) -> None:
    """Check the arguments of a call against the tool's schema.

    Raises:
        InvalidInput: arguments are invalid; the message gives the reasons and the tool's arguments.
    """
    from jsonschema import Draft202012Validator

    validator: Any = Draft202012Validator(tool.schema(models))  # its type annotations are incomplete
    errors = list(validator.iter_errors(dict(arguments)))
    if errors:
        why = "; ".join(f"{'.'.join(map(str, e.absolute_path))} {e.message[:200]}".strip() for e in errors[:3])
        names = ", ".join((*tool.parameters, MODEL))
        raise InvalidInput(f"arguments of {tool.name}", why=why, instead=f"Give only arguments of these: {names}")
    if arguments.get("prompt") == "-":
        raise InvalidInput(
            "prompt '-'", why="it stands for standard input, which a tool does not have", instead="Give a text"
        )

"""The commands that answer a question, as tools: names, schemas of arguments, and how these are read.

A tool is derived from its command, so that an agent gets what a person gets. What could read or write a file that the
user did not name is left out: options that are paths, texts of a corpus, and vectors read from files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from unembed.cli.command import COMMANDS, Command, fields_of, value_of
from unembed.cli.option_groups import Opening, Output
from unembed.errors import InvalidInput
from unembed.options import Parameter

_FILES = frozenset({"corpus", "trigger_corpus", "add_vector", "replace_stream", "scorer"})
"""Options whose text may name a file."""
_NONE_OF = frozenset({"next_steps", "recompute"})
"""Switches without a meaning here."""
_JSON = {"int": "integer", "float": "number", "str": "string", "text": "string", "bool": "boolean"}
MODEL = "model"


@dataclass(frozen=True)
class Tool:
    """A command as a tool.

    Attributes:
        name: the words of the command, joined by hyphens: "circuits-head".
        command: what is run.
        parameters: by the names that a client uses.
        takes_index: its first option is the folder of an index, which the server fills in.
    """

    name: str
    command: Command
    parameters: Mapping[str, Parameter]
    takes_index: bool

    def schema(self, models: Mapping[str, str]) -> dict[str, Any]:
        """The JSON schema of its arguments; `models` are the models that a client may name, with a word about each."""
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
        """Return the arguments of the command's function, from those of a call.

        Raises:
            typer.BadParameter: a text is not of the form that its option has.
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
    """The tools by name: commands that answer about a model or its index, in the order of the help."""
    from unembed.analyses import listings
    from unembed.cli import commands  # declares the handwritten commands
    from unembed.cli.analysis import command_of

    assert commands.app is not None
    found = (_tool(one) for one in (*COMMANDS, *map(command_of, listings())))
    return {one.name: one for one in found if one is not None}


def _tool(command: Command) -> Tool | None:
    """The tool of a command; None for one that answers no question, or needs a file."""
    slots = command.slots
    takes_index = "folder" in slots
    if not any(isinstance(slot, Output) for slot in slots.values()):
        return None
    if not takes_index and not any(isinstance(slot, Opening) for slot in slots.values()):
        return None
    every = [
        one
        for slot in slots.values()
        for one in ([slot] if isinstance(slot, Parameter) else [] if _is_shared(slot) else fields_of(slot))
    ]
    own = [one for one in every if not (takes_index and one.name in ("folder", "model"))]
    if any(one.required and one.kind == "path" for one in own):
        return None
    shown = [one for one in own if _is_for_a_client(one)]
    return Tool(command.words.replace(" ", "-"), command, {_name(one): one for one in shown}, takes_index)


def _is_shared(slot: Any) -> bool:
    return isinstance(slot, Opening | Output)


def _is_for_a_client(one: Parameter) -> bool:
    return one.kind != "path" and one.name not in _FILES | _NONE_OF and not one.option.hidden


def _name(one: Parameter) -> str:
    """The name of an argument: that of the option; several prompts of a command are one here."""
    return "prompt" if one.name == "prompts" else (one.option.name or one.name).strip("_").replace("-", "_")


def _schema_of(one: Parameter) -> dict[str, Any]:
    """The JSON schema of an option."""
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
    """Refuse arguments that are not those of the tool's schema.

    Raises:
        InvalidInput: what is wrong with each, and the arguments that the tool has.
    """
    from jsonschema import Draft202012Validator

    validator: Any = Draft202012Validator(tool.schema(models))  # whose own types leave the instance unknown
    errors = list(validator.iter_errors(dict(arguments)))
    if errors:
        why = "; ".join(f"{'.'.join(map(str, e.absolute_path))} {e.message[:200]}".strip() for e in errors[:3])
        names = ", ".join((*tool.parameters, MODEL))
        raise InvalidInput(f"arguments of {tool.name}", why=why, instead=f"Its arguments are {names}")


def with_models(opening: Opening, model: str) -> Opening:
    """The same way of opening, for another model."""
    return replace(opening, model=model)

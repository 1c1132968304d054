"""How `--help` looks, the same for every command: placeholders for arguments, and an example at the end."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from typing import Any

import typer
from typer.core import TyperArgument, TyperOption

from unembed.analyses import listings

EXAMPLES = {
    "trace": 'unembed trace "The war lasted from 1861" --hide-unlearned',
    "lens": 'unembed lens "The war lasted from 1861" "He was born in the United" --csv',
    "explain": 'unembed explain "He was born in the United" --token " States" --against " Kingdom"',
    "patch": 'unembed patch "The blue car and the red" "The blue sky and the red" --points heads',
    "paths": 'unembed paths "The blue car and the red" "The blue sky and the red" --to logits --to "layer 5"',
    "ablate": 'unembed ablate "Once upon a time there was a little" --answer " girl" --against " boy"',
    "value": "unembed value L7M985 --top 5",
    "memories": "unembed memories --top 20 --html gallery.html",
    "clusters": "unembed clusters --clusters 600 --top 20",
    "concepts": "unembed concepts L3M17 L4M200",
    "models": "unembed models",
    "train": "unembed train dictionary --features 64 --active 8 --steps 20",
    "doctor": "unembed doctor",
    "serve": "unembed serve --model wren --port 8000",
    "steer": 'unembed steer "The men were very" --promote "happy, proud" --seed 1',
    "report": "unembed report geva2021 --corpus shipped --out report",
    "annotate export": "unembed annotate export sheet.json --per-layer 10 --seed 1",
    "annotate import": "unembed annotate import ann.json ben.json --out patterns.parquet",
    "annotate agreement": "unembed annotate agreement ann.json ben.json --automatic",
    "index build": "unembed index build --corpus mine.jsonl --out mine.index",
    "index status": "unembed index status mine.index",
    "index triggers": "unembed index triggers mine.index L4M571 --top 5",
    "index search": "unembed index search mine.index 'river \"the bridge\" flood*'",
    "index promoting": 'unembed index promoting mine.index " river"',
    "index firing": 'unembed index firing mine.index "The river rose over its"',
    "index similar": "unembed index similar mine.index L4M571 --among keys",
    "index sql": 'unembed index sql mine.index "SELECT * FROM triggers WHERE layer = 4 LIMIT 5"',
    "index verify": "unembed index verify mine.index",
    "index export": "unembed index export mine.index triggers.parquet --layer 4",
    "toxicity select": "unembed toxicity select --values 10 --seed 0 --save values.json",
    "toxicity evaluate": "unembed toxicity evaluate --prompts prompts.jsonl --edits values.json --cache runs",
    "early-exit fit": "unembed early-exit fit --out rule.npz --examples 5000",
    "early-exit evaluate": "unembed early-exit evaluate rule.npz --tradeoff",
    "early-exit generate": 'unembed early-exit generate rule.npz "Once upon a time" --new-tokens 40',
}
"""A line to try, by handwritten command; an analysis declares its own. A test reads each as the command line would."""


def examples() -> dict[str, str]:
    """A line to try, by command."""
    return EXAMPLES | {listing.name: listing.example for listing in listings() if listing.example}


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command below a group with its words, such as "index build"; groups themselves too."""
    for name, command in group.commands.items():
        words = f"{before} {name}".strip()
        yield words, command
        if hasattr(command, "commands"):
            yield from commands(command, words)


def tidy(group: Any) -> None:
    """Give every command its example, and every parameter the same kind of word for its value."""
    lines = examples()
    for words, command in [("", group), *commands(group)]:
        if words in lines:
            command.epilog = f"Try: `{lines[words]}`"
        command.format_help = _without_trailing_spaces(command.format_help)
        shown = command.get_help_option(typer.Context(command, help_option_names=["-h", "--help"]))
        for parameter in [shown, *command.params]:
            if isinstance(parameter, TyperArgument):
                parameter.metavar = (parameter.metavar or parameter.name).upper()
            elif isinstance(parameter, TyperOption) and parameter.metavar is None:
                parameter.metavar = _word(parameter)


def _without_trailing_spaces(format_help: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """What prints a help; in a pipe or file without the spaces that fill its boxes' lines."""

    def formatted(context: Any, formatter: Any) -> None:
        if sys.stdout.isatty():
            format_help(context, formatter)
            return
        with redirect_stdout(_Captured(sys.stdout.encoding)) as shown:
            format_help(context, formatter)
        print("\n".join(line.rstrip() for line in shown.getvalue().splitlines()))

    return formatted


class _Captured(io.StringIO):
    """Text with the encoding of where it will go, by which rich chooses its lines."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._encoding


def _word(option: TyperOption) -> str | None:
    """None leaves it to typer."""
    kind = option.type_descriptor
    if option.is_flag:
        return ""
    if kind.is_choice:
        return " | ".join(map(str, kind.choices or ()))  # with spaces, so that a narrow column breaks between words
    bare = option.bare_type().removeprefix("list[").removesuffix("]")
    return {"int": "NUMBER", "float": "NUMBER", "str": "TEXT", "Path": "FILE"}.get(bare)

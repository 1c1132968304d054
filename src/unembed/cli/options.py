"""The options that commands share, and what their text means."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from unembed.names import Basis, MemoryIndex, StreamPoint, parse_memory

_MODEL, _OUTPUT, _READING = "Model", "Output", "Reading"

Prompt = Annotated[str, typer.Argument(help="The text to run the model on.", show_default=False)]

Model = Annotated[
    str,
    typer.Option("--model", "-m", help="Name of a shipped model, Hugging Face id, or folder.", rich_help_panel=_MODEL),
]
Revision = Annotated[
    str | None, typer.Option(help="Commit, tag or branch of a hub model.", rich_help_panel=_MODEL, show_default=False)
]
Tokenizer = Annotated[
    str | None,
    typer.Option(help="Tokenizer folder or hub id, if the model has none.", rich_help_panel=_MODEL, show_default=False),
]
Offline = Annotated[bool, typer.Option("--offline", help="Use only what is on this machine.", rich_help_panel=_MODEL)]
DType = Annotated[
    str | None,
    typer.Option(help="float32, bfloat16, float16; default: as saved.", rich_help_panel=_MODEL, show_default=False),
]
Device = Annotated[
    str | None,
    typer.Option(
        help="cpu, cuda, cuda:1, ...; auto: over all GPUs, then memory, then disk.",
        rich_help_panel=_MODEL,
        show_default=False,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(help="Seed of all random choices.", show_default=False),
]
UnusedSeed = Annotated[
    int | None,
    typer.Option(help="Accepted, but this command makes no random choice.", show_default=False),
]

Layer = Annotated[
    int | None, typer.Option("--layer", "-l", help="Only this layer; counted from 0.", show_default=False)
]
Position = Annotated[int, typer.Option("--position", "-p", help="Token position, from 0; negative from the end.")]
Top = Annotated[int, typer.Option("--top", "-k", min=1, help="Tokens per reading.")]
PointOption = Annotated[
    StreamPoint, typer.Option(help="Capture point of the table over all positions.", rich_help_panel=_READING)
]
BasisOption = Annotated[
    Basis,
    typer.Option(
        help="final: final norm and unembedding; raw: unembedding alone; frozen: final norm at the run's scale.",
        rich_help_panel=_READING,
    ),
]
ShowUnlearned = Annotated[
    bool,
    typer.Option(
        "--show-unlearned/--hide-unlearned",
        help="Include tokens that the model never learned (by training counts or by the embedding).",
    ),
]
Against = Annotated[
    str | None,
    typer.Option(
        help="Compare with this token's logit; default: the runner-up's. none: the token's logit alone.",
        show_default=False,
    ),
]
IndexFolder = Annotated[
    Path | None,
    typer.Option("--index", metavar="DIR", help="An index of the model; default: its ready index.", show_default=False),
]


def _edit(name: str, metavar: str | None, text: str) -> Any:
    """An option of one kind of edit."""
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel="Edits", show_default=False)


Sets = Annotated[
    list[str] | None,
    _edit(
        "--set", "MEMORY=VALUE", "Set the coefficient of a memory (FFN neuron; L5M278=0) at every position; repeatable."
    ),
]
Scales = Annotated[
    list[str] | None,
    _edit(
        "--scale",
        "TARGET=FACTOR",
        "Scale a memory (L5M278=2), a head (L1H5=0), or a layer's part (ffn3=0, attention2=0.5); repeatable.",
    ),
]
Adds = Annotated[list[str] | None, _edit("--add", "MEMORY=VALUE", "Add to a memory's coefficient; repeatable.")]
AddedVectors = Annotated[
    list[str] | None,
    _edit(
        "--add-vector",
        "LAYER=VECTOR",
        "Add a vector to the stream after a layer, at every position: a .npy or JSON file (3=v.npy), or the "
        "difference of two prompts, with a factor ('3=2*I love this|I hate this'); repeatable.",
    ),
]
ReplacedStreams = Annotated[
    list[str] | None,
    _edit(
        "--replace-stream",
        "LAYER=VECTOR",
        "Replace the stream after a layer with a vector, at the last position; repeatable.",
    ),
]
EditsFile = Annotated[Path | None, _edit("--edits", None, "A file of saved edits.")]
Memory = Annotated[
    str,
    typer.Argument(
        metavar="MEMORY", help="A memory (FFN neuron), such as L5M278; or its layer alone.", show_default=False
    ),
]
MemoryNumber = Annotated[
    int | None,
    typer.Argument(metavar="NUMBER", help="Its number in the layer, where MEMORY is one.", show_default=False),
]
ValueBasis = Literal["raw", "final"]
"""A value has no run whose scale could be frozen."""

Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, with a stable schema.", rich_help_panel=_OUTPUT)]
Csv = Annotated[bool, typer.Option("--csv", help="One table as CSV on stdout.", rich_help_panel=_OUTPUT)]
Plain = Annotated[bool, typer.Option("--plain", help="No colour, bars or signs.", rich_help_panel=_OUTPUT)]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="FILE", help="Write a self-contained page.", rich_help_panel=_OUTPUT, show_default=False
    ),
]


def compared_with(against: str | None) -> tuple[str | None, bool]:
    """What `--against` names: a token (None: the runner-up), and whether the logit is explained alone."""
    return (None, True) if against == "none" else (against, False)


def memory_and_number(text: str, number: int | None) -> tuple[int, MemoryIndex]:
    """Layer and index of a memory written L5M278 or 5.278, or as layer and number: 5 278.

    Raises:
        typer.BadParameter: the text is not of that form.
    """
    if number is None:
        return memory(text, "MEMORY")
    if not text.strip().isdecimal():
        raise typer.BadParameter(f"{text!r} is not a layer, as in 5 278", param_hint="MEMORY")
    return int(text), number


def memory(text: str, option: str) -> tuple[int, MemoryIndex]:
    """Layer and index of a memory written L5M278 or 5.278; of an expert's, L12E7M345, the index is (expert, index).

    Raises:
        typer.BadParameter: the text is not of that form.
    """
    named = parse_memory(text)
    if named is None:
        raise typer.BadParameter(f"{text!r} is not a memory, such as L5M733", param_hint=option)
    return named


def head(text: str, option: str) -> tuple[int, int]:
    """Layer and head of a head written L0H3 or 0.3.

    Raises:
        typer.BadParameter: the text is not of that form.
    """
    match = re.fullmatch(r"L?(\d+)[.H](\d+)", text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a head, such as L0H3", param_hint=option)
    return int(match[1]), int(match[2])


class OfOneHead(TyperCommand):
    """A command whose first two arguments are a layer and a head, which may be one name: L0H3 or 0.3."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; a name instead of the layer gives both numbers."""
        for i, argument in enumerate(args):
            is_value = i > 0 and args[i - 1].startswith("-")
            if argument.isdecimal() and not is_value:
                break  # the layer
            if (name := re.fullmatch(r"L?(\d+)[.H](\d+)", argument)) is not None and not is_value:
                args = [*args[:i], name[1], name[2], *args[i + 1 :]]
                break
        return super().parse_args(ctx, args)

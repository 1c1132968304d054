"""Edits on the command line: the options, and what their text means."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from unembed.errors import InvalidInput
from unembed.names import MemoryIndex, head_named, parse_memory, parse_signed_memory
from unembed.options import Option

if TYPE_CHECKING:
    from unembed import Edit, LanguageModel

_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_VALUE = re.compile(rf"(?P<target>[^=]+)=\s*(?P<value>{_NUMBER})")
_PART = re.compile(r"(attention|ffn) ?(\d+)")
_VECTOR = re.compile(rf"L?(?P<layer>\d+)\s*=\s*(?:(?P<factor>{_NUMBER})\s*\*\s*)?(?P<source>.+)", re.DOTALL)


Sets = Annotated[
    list[str] | None,
    Option(
        "Set the coefficient of a memory (FFN neuron; L5M278=0) at every position; repeatable.",
        metavar="MEMORY=VALUE",
        name="set",
    ),
]
EditFiles = Annotated[list[Path] | None, Option("A file of saved edits; repeatable.", metavar="FILE", name="edits")]


@dataclass(frozen=True)
class VectorSource:
    """A vector for the stream after a layer: the numbers of a file, or the difference of two prompts."""

    layer: int
    factor: float
    source: str

    @property
    def prompts(self) -> tuple[str, str] | None:
        """The prompt that the vector leads to and the one that it leads away from; None where a file is named."""
        positive, bar, negative = self.source.partition("|")
        return (positive, negative) if bar else None


def memory_edit(text: str, option: str) -> tuple[int, MemoryIndex, float]:
    """Layer, index and number of MEMORY=NUMBER; of -L5M278=3, the negative pole, the number is -3.

    Raises:
        typer.BadParameter: the text is not of that form.
    """
    match = _VALUE.fullmatch(text.strip())
    named = None if match is None else parse_signed_memory(match["target"])
    if match is None or named is None:
        raise typer.BadParameter(f"{text!r} is not a memory and a value, such as L5M733=3.0", param_hint=option)
    return *named.address, named.sign * float(match["value"])


def scaling(text: str) -> tuple[str, int, MemoryIndex | None, float]:
    """What is scaled ("memory", "head", "attention", "ffn"), layer, index (None for a layer) and factor.

    Raises:
        typer.BadParameter: the text is not of the form TARGET=FACTOR.
    """
    if match := _VALUE.fullmatch(text.strip()):
        target, factor = match["target"].strip(), float(match["value"])
        if head := head_named(target):
            return "head", head.layer, head.head, factor
        if part := _PART.fullmatch(target):
            return part[1], int(part[2]), None, factor
        if (named := parse_memory(target)) is not None:
            return "memory", *named, factor
    why = f"{text!r} is not a memory, a head or a layer's part and a factor, such as L5M733=0, L1H5=0 or ffn3=0.5"
    raise typer.BadParameter(why, param_hint="--scale")


def vector_source(text: str, option: str) -> VectorSource:
    """Layer, factor and source of LAYER=[FACTOR*]SOURCE.

    Raises:
        typer.BadParameter: the text is not of that form.
    """
    match = _VECTOR.fullmatch(text.strip())
    if match is None:
        why = f"{text!r} is not a layer and a vector, such as '3=vector.npy' or '3=2*I love this|I hate this'"
        raise typer.BadParameter(why, param_hint=option)
    return VectorSource(int(match["layer"]), float(match["factor"] or 1), match["source"].strip())


@dataclass(frozen=True, kw_only=True)
class EditOptions:
    """Changes made while the model runs."""

    PANEL: ClassVar[str] = "Edits"
    set_: Sets = None
    scale: Annotated[
        list[str] | None,
        Option(
            "Scale a memory (L5M278=2), a head (L1H5=0), or a layer's part (ffn3=0, attention2=0.5); repeatable.",
            metavar="TARGET=FACTOR",
        ),
    ] = None
    add: Annotated[list[str] | None, Option("Add to a memory's coefficient; repeatable.", metavar="MEMORY=VALUE")] = (
        None
    )
    add_vector: Annotated[
        list[str] | None,
        Option(
            "Add a vector to the stream after a layer, at every position: a .npy or JSON file (3=v.npy), or the "
            "difference of two prompts, with a factor ('3=2*I love this|I hate this'); repeatable.",
            metavar="LAYER=VECTOR",
        ),
    ] = None
    replace_stream: Annotated[
        list[str] | None,
        Option(
            "Replace the stream after a layer with a vector, at the last position; repeatable.", metavar="LAYER=VECTOR"
        ),
    ] = None
    edits_file: EditFiles = None

    def __post_init__(self) -> None:
        """Read what needs no model.

        Raises:
            typer.BadParameter: a text is not of the form that its option takes.
        """
        for text in self.set_ or ():
            memory_edit(text, "--set")
        for text in self.add or ():
            memory_edit(text, "--add")
        for text in self.scale or ():
            scaling(text)
        for option, texts in (("--add-vector", self.add_vector), ("--replace-stream", self.replace_stream)):
            for text in texts or ():
                vector_source(text, option)

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) for f in fields(self))

    def edits(self, lm: LanguageModel) -> list[Edit]:
        """The edits: those of the file, then those of the options in the order of `--help`.

        Raises:
            InvalidInput: a file cannot be read, or is of another model.
        """
        import unembed

        found: list[Edit] = []
        for path in self.edits_file or ():
            found += unembed.steering.load_edits(path, model=lm.name)
        found += [unembed.set_coefficient(*memory_edit(text, "--set")) for text in self.set_ or ()]
        found += [_scaled(*scaling(text)) for text in self.scale or ()]
        found += [unembed.add_to_coefficient(*memory_edit(text, "--add")) for text in self.add or ()]
        for text in self.add_vector or ():
            source = vector_source(text, "--add-vector")
            found.append(unembed.add_vector(source.layer, _vector(lm, source), source.factor))
        for text in self.replace_stream or ():
            source = vector_source(text, "--replace-stream")
            vector = [source.factor * number for number in _vector(lm, source)]
            found.append(unembed.replace_stream(source.layer, vector))
        return found


def _scaled(what: str, layer: int, index: MemoryIndex | None, factor: float) -> Edit:
    import unembed

    if what == "memory" and index is not None:
        return unembed.scale_coefficient(layer, index, factor)
    if what == "head" and isinstance(index, int):
        return unembed.scale_head(layer, index, factor)
    return (unembed.scale_attention if what == "attention" else unembed.scale_ffn)(layer, factor)


def _vector(lm: LanguageModel, source: VectorSource) -> list[float]:
    import unembed

    if source.prompts is not None:
        vector = unembed.steering.contrast_vector(lm, *source.prompts, source.layer)
        return [float(number) for number in vector]
    return _numbers(Path(source.source))


def _numbers(path: Path) -> list[float]:
    """The numbers of a .npy file, or of a JSON list.

    Raises:
        InvalidInput: the file cannot be read, or holds something else.
    """
    import numpy as np

    try:
        stored = (
            np.load(path, allow_pickle=False) if path.suffix == ".npy" else json.loads(path.read_text(encoding="utf-8"))
        )
        numbers = np.asarray(stored, dtype=np.float64)
    except (OSError, ValueError, TypeError) as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InvalidInput(
            f"cannot read a vector from {path}",
            why=why,
            instead="Give a .npy file, a JSON list of numbers, or two prompts as 'PROMPT|PROMPT'",
        ) from error
    return numbers.reshape(-1).tolist()

"""The command-line options for edits of a forward pass, and how their values are parsed."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from unembed.errors import InvalidInput, reading_fault
from unembed.names import NUMBER, VALUE, MemoryIndex, MemoryValue, head_named, parse_memory, read_memory_value
from unembed.options import EditFiles, MemoryValues, Option

if TYPE_CHECKING:
    from unembed import Edit, LanguageModel

_PART = re.compile(r"(attention|ffn) ?(\d+)")
_VECTOR = re.compile(rf"L?(?P<layer>\d+)\s*=\s*(?:(?P<factor>{NUMBER})\s*\*\s*)?(?P<source>.+)", re.DOTALL)


Scaling = tuple[str, int, MemoryIndex | None, float]


@dataclass(frozen=True)
class VectorSource:
    """A vector to add to the residual stream after a layer, from a file or from the difference of two prompts."""

    layer: int
    factor: float
    source: str

    @property
    def prompts(self) -> tuple[str, str] | None:
        """The two prompts (positive, negative) whose residual streams are subtracted; None if a file is named."""
        positive, bar, negative = self.source.partition("|")
        return (positive, negative) if bar else None


def read_scaling(text: str) -> Scaling:
    """Parse TARGET=FACTOR into (kind, layer, index, factor).

    The kind is "memory", "head", "attention" or "ffn"; for the last two, which name a whole layer, the index is None.

    Raises:
        InvalidInput: the text does not have the form TARGET=FACTOR.
    """
    if match := VALUE.fullmatch(text.strip()):
        target, factor = match["target"].strip(), float(match["value"])
        if head := head_named(target):
            return "head", head.layer, head.head, factor
        if part := _PART.fullmatch(target):
            return part[1], int(part[2]), None, factor
        if (named := parse_memory(target)) is not None:
            return "memory", *named, factor
    raise InvalidInput(
        f"{text!r} is not TARGET=FACTOR, where TARGET is a memory, a head, an FFN or an attention layer, such as "
        "L5M733=0, L1H5=0 or ffn3=0.5"
    )


def read_vector(text: str) -> VectorSource:
    """Parse LAYER=[FACTOR*]SOURCE, where SOURCE is a file or PROMPT|PROMPT.

    Raises:
        InvalidInput: the text does not have that form.
    """
    match = _VECTOR.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(
            f"{text!r} is not a layer and a vector, such as '3=vector.npy' or '3=2*I love this|I hate this'"
        )
    return VectorSource(int(match["layer"]), float(match["factor"] or 1), match["source"].strip())


@dataclass(frozen=True, kw_only=True)
class EditOptions:
    """Options for edits: changes to activations during the forward pass."""

    PANEL: ClassVar[str] = "Edits"
    set_: MemoryValues = None
    scale: Annotated[
        list[Scaling] | None,
        Option(
            "Multiply the output of a memory (L5M278=2), a head (L1H5=0), or a layer's FFN or attention (ffn3=0, "
            "attention2=0.5) by a factor; repeatable.",
            metavar="TARGET=FACTOR",
            parse=read_scaling,
        ),
    ] = None
    add: Annotated[
        list[MemoryValue] | None,
        Option(
            "Add a number to a memory's coefficient: L5M278=1, or L5M278=x1 to add its typical size (the root mean "
            "square over text); repeatable.",
            metavar="MEMORY=VALUE",
            parse=read_memory_value,
        ),
    ] = None
    add_vector: Annotated[
        list[VectorSource] | None,
        Option(
            "Add a vector to the residual stream after a layer, at every position: from a .npy or JSON file (3=v.npy), "
            "or the difference of two prompts, with a factor ('3=2*I love this|I hate this'); repeatable.",
            metavar="LAYER=VECTOR",
            parse=read_vector,
        ),
    ] = None
    replace_stream: Annotated[
        list[VectorSource] | None,
        Option(
            "Replace the residual stream after a layer with a vector, at the last position; repeatable.",
            metavar="LAYER=VECTOR",
            parse=read_vector,
        ),
    ] = None
    edits_file: EditFiles = None

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) for f in fields(self))

    def edits(self, lm: LanguageModel) -> list[Edit]:
        """Return the edits: those from files first, then those of the other options, in the order of `--help`.

        Raises:
            InvalidInput: a file cannot be read, or was made for another model.
        """
        import unembed

        found: list[Edit] = []
        for path in self.edits_file or ():
            found += unembed.steering.load_edits(path, model=lm.name)
        found += [unembed.set_coefficient(one.layer, one.index, _sized(lm, one)) for one in self.set_ or ()]
        found += [_scaled(*one) for one in self.scale or ()]
        found += [unembed.add_to_coefficient(one.layer, one.index, _sized(lm, one)) for one in self.add or ()]
        found += [unembed.add_vector(one.layer, _vector(lm, one), one.factor) for one in self.add_vector or ()]
        for one in self.replace_stream or ():
            found.append(unembed.replace_stream(one.layer, [one.factor * number for number in _vector(lm, one)]))
        return found


def _sized(lm: LanguageModel, given: MemoryValue) -> float:
    """Return the coefficient as a number. For `xNUMBER`, also print the memory's typical coefficient on stderr."""
    import unembed
    from unembed.memories import sized

    value, words = sized(lm, given, unembed.cached_index(lm) if given.in_usual else None)
    if words:
        print(words, file=sys.stderr)
    return value


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
    """Return the numbers in a .npy file or a JSON list.

    Raises:
        InvalidInput: the file cannot be read, or does not contain numbers.
    """
    import numpy as np

    try:
        stored = (
            np.load(path, allow_pickle=False) if path.suffix == ".npy" else json.loads(path.read_text(encoding="utf-8"))
        )
        numbers = np.asarray(stored, dtype=np.float64)
    except Exception as error:  # for a damaged file, NumPy can raise errors of zipfile and others
        raise InvalidInput(
            f"cannot read a vector from {path}",
            why=reading_fault(error),
            instead="Give a .npy file, a JSON list of numbers, or two prompts as 'PROMPT|PROMPT'",
        ) from error
    return numbers.reshape(-1).tolist()

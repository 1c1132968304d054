"""The options of analyses and commands: each name has one meaning, one type and one help text.

A parameter is declared by its annotation, `Annotated[int, Option("What it means.")]`. Options that several functions
share are types here: `top: Top = 20`. From the signature, `parameter_of` finds what the command line and the explorer's
API need.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Protocol, Union, get_args, get_origin, runtime_checkable

from unembed.names import (
    Basis,
    HeadAddress,
    HeadBasis,
    MemoryAddress,
    MemoryValue,
    Pole,
    SignedMemory,
    StreamPoint,
    parse_head,
    parse_heads,
    read_memory,
    read_memory_value,
    read_signed_memory,
)


@dataclass(frozen=True)
class Option:
    """How a parameter is named, explained and read outside Python.

    Attributes:
        help: what it means, in one sentence.
        letter: the short option, such as "k" for `-k`.
        low: the smallest number allowed.
        high: the largest number allowed.
        metavar: the word for its value in help texts; chosen by type when empty.
        argument: an argument of a command though it has a default.
        parse: reads the value from text; raises `InvalidInput` where the text is not of the form.
        aliases: former spellings, such as "--answer", that are still understood but shown nowhere.
        name: the name of the option where the parameter's own is none: "json" for `as_json`.
        off: the opposite of a switch, such as "--as-written"; by default, of one that is on, "--no-" and its name.
        hidden: understood, but shown nowhere.
        variable: an environment variable that gives the value on the command line where the option is left out.
        given: what a surface gives by itself: "edits", changes of the run, and "prompts", texts or their tokens, which
            each surface reads in its own way; "progress", a function that is called with a stage, how much of it is
            done, and the whole; "index", the model's index (`IndexOnNeed`); "offline" and "device", how the model was
            opened.
    """

    help: str
    letter: str = ""
    low: int | float | None = None
    high: int | float | None = None
    metavar: str = ""
    argument: bool = False
    parse: Callable[[str], Any] | None = None
    aliases: tuple[str, ...] = ()
    name: str = ""
    off: str = ""
    hidden: bool = False
    variable: str = ""
    given: Literal["", "edits", "prompts", "progress", "index", "offline", "device"] = ""


@dataclass(frozen=True)
class Parameter:
    """One option of a function, read from its signature.

    Attributes:
        kind: "int", "float", "str", "bool", "path", "text" for what `Option.parse` reads, or `Option.given`.
        required: there is no default.
        repeated: takes a list of values.
        argument: a command takes it by its place, not by its name.
    """

    name: str
    kind: str
    option: Option
    required: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    repeated: bool = False
    argument: bool = False


@runtime_checkable
class IndexOnNeed(Protocol):
    """The index of the model that a surface has open or names, which is opened when it is called for."""

    @property
    def is_chosen(self) -> bool:
        """Tell whether the user chose this index, rather than the model's ready one."""
        ...

    def __call__(self, *, build: bool = True, opened: bool = True) -> Any:
        """Return the index; None where there is none.

        Args:
            build: a ready index that does not exist yet may be built.
            opened: the model may be opened to find its index; otherwise it is found by the record of its weights.
        """
        ...


_KINDS = {int: "int", float: "float", str: "str", bool: "bool", Path: "path"}

Prompt = Annotated[str, Option("The text to run the model on.")]
Top = Annotated[int, Option("Number of rows to list.", "k", low=1)]
Tokens = Annotated[int, Option("Number of tokens to list for each reading.", low=1, aliases=("--top", "-k"))]
TokensOrFew = Annotated[
    int | None, Option("Number of tokens to list for each reading.", low=1, aliases=("--top", "-k"))
]
TopTokens = Annotated[int, Option("Number of promoted tokens of each memory.", low=4, aliases=("--top", "-k"))]
Position = Annotated[int, Option("Token position, from 0; negative from the end.", "p")]
Layer = Annotated[int | None, Option("Only this layer, from 0.", "l")]
Layers = Annotated[list[int] | None, Option("Only this layer, from 0; repeatable.", "l", aliases=("--layer",))]
Token = Annotated[
    str | None,
    Option("The token to explain, its leading space included; default: the predicted one.", "t", aliases=("--answer",)),
]
Against = Annotated[str | None, Option("Subtract this token's logit; none: the logit of --token alone.")]
Corpus = Annotated[
    str | None,
    Option(
        "Text: a file, folder or pattern; shipped: the WikiText sample, the default of commands that need a text.", "c"
    ),
]
MaxTokens = Annotated[int, Option("Largest number of tokens to run.", low=1, aliases=("--tokens",))]
LensFile = Annotated[
    str | None,
    Option(
        "The fitted lens through which streams and values are read: a file written by unembed fit-lens, or none for "
        "the logit lens. Default: the lens stored for this model, if there is one.",
        metavar="FILE",
    ),
]
Seed = Annotated[int, Option("Seed of all random choices.")]
AnySeed = Annotated[int | None, Option("Seed of all random choices.")]
"""Where none is given, the likeliest token follows; or the seed is one that no other command's examples have."""
UnusedSeed = Annotated[int | None, Option("Seed of all random choices.", hidden=True)]
"""Understood everywhere; hidden where no choice is random. The result's provenance records it."""
_HOW_NORMS = (
    "How a vector is read. raw: the unembedding or the weights alone, as in the papers; final: through the final "
    "norm; frozen: through it, at the scale of the run; folded: with norm gains, the default of circuits; jacobian: by "
    "the lens fitted on text, the default where there is one (else final for streams, raw for values)."
)
ReadingBasis = Annotated[Basis | None, Option(_HOW_NORMS)]
ValueBasis = Annotated[Literal["raw", "final", "jacobian"] | None, Option(_HOW_NORMS)]
"""A value has no run whose scale could be frozen."""
CircuitBasis = Annotated[HeadBasis | None, Option(_HOW_NORMS)]
ReadPoint = Annotated[StreamPoint, Option("Capture point that is read.")]
Head = Annotated[HeadAddress, Option("A head, such as L0H3 or 0.3.", parse=parse_head)]
Without = Annotated[Sequence[HeadAddress], Option('Heads to ablate, such as "L1H0,L1H6".', parse=parse_heads)]
Memory = Annotated[
    SignedMemory,
    Option(
        "A memory (FFN neuron), such as L5M278; -L5M278 is the same one at negative activations.",
        parse=read_signed_memory,
    ),
]
Memories = Annotated[
    list[MemoryAddress] | None,
    Option("A memory (FFN neuron), such as L5M278; repeatable.", parse=read_memory, name="memory", metavar="MEMORY"),
]
ShowUnlearned = Annotated[
    bool,
    Option(
        "Include tokens that the model never learned (by training counts or by the embedding).", off="--hide-unlearned"
    ),
]
ShowAll = Annotated[
    bool, Option("Show everything in the terminal: each row, and of a trace each layer, event and writer.", name="all")
]
AnySide = Annotated[
    Pole | None, Option("Only triggers with positive, or negative, coefficients (an index of gated layers has both).")
]
Context = Annotated[int | None, Option("Tokens shown of each prefix; default: as many as fit.", low=0)]
IndexFolder = Annotated[Path | None, Option("An index of the model; default: one in the cache folder.", metavar="DIR")]
OUT = Option("The file or folder to write.", "o")
Out = Annotated[Path | None, OUT]
Places = Annotated[int, Option("Places of the text at which each value is added.", low=1)]
PerLayer = Annotated[int, Option("Memories drawn from each layer.", low=1)]
Samples = Annotated[int, Option("Continuations of each prompt; more than one needs --seed.", low=1)]
Clusters = Annotated[int | None, Option("Number of clusters of values.", low=1, name="clusters")]
NewTokens = Annotated[int, Option("Tokens to generate.", "n", low=1)]
Dictionaries = Annotated[
    list[str] | None,
    Option(
        "Features of this dictionary (sparse autoencoder or transcoder) are nodes; where it replaces an FFN, in place "
        "of the memories: a folder, or an id of the hub. Repeatable, for several layers.",
        name="dictionary",
        metavar="FOLDER",
    ),
]
Coefficient = Annotated[float, Option("Coefficient of the values to turn on.")]
Clean = Annotated[str, Option("The clean prompt, on which the model shows the behaviour.")]
Corrupted = Annotated[str, Option("The corrupted prompt, on which the model does not show the behaviour.")]
Noising = Annotated[bool, Option("Patch corrupted activations into the clean run instead.")]
Align = Annotated[bool, Option("Find corresponding tokens where the prompts differ in length.")]
Edits = Annotated[Sequence[Any], Option("Changes made while the model runs.", given="edits")]
EditFiles = Annotated[list[Path] | None, Option("A file of saved edits; repeatable.", metavar="FILE", name="edits")]
SaveEdits = Annotated[Path | None, Option("Save the edits to this file.")]
MemoryValues = Annotated[
    list[MemoryValue] | None,
    Option(
        "Set the coefficient of a memory (FFN neuron; L5M278=0, or x3 for three times its usual size) at every "
        "position; repeatable.",
        metavar="MEMORY=VALUE",
        name="set",
        parse=read_memory_value,
    ),
]
Progress = Annotated[
    Callable[[str, int, int | None], None] | None,
    Option("Function that is called with the progress while the analysis runs.", given="progress"),
]
Index = Annotated[
    IndexOnNeed, Option("An index of the model; default: one in the cache folder.", metavar="DIR", given="index")
]
Prompts = Annotated[Sequence[Any], Option("Texts to run the model on, or their token ids.", given="prompts")]
Offline = Annotated[bool, Option("Use only what is on this machine.", given="offline")]
Device = Annotated[str | None, Option("Where the model is.", given="device")]


def parameter_of(given: inspect.Parameter, function: Callable[..., Any]) -> Parameter:
    """Return a parameter of a function with the information in its annotation.

    Raises:
        TypeError: the annotation has no `Option`, or its type is none that a surface can read.
    """
    hint: Any = given.annotation  # text where the function's module postpones annotations
    hint = eval(hint, inspect.unwrap(function).__globals__) if isinstance(hint, str) else hint
    kind, option = get_args(hint) if get_origin(hint) is Annotated else (hint, None)
    if not isinstance(option, Option):
        raise TypeError(f"parameter {given.name!r} has no help: annotate it with Annotated[..., Option(...)]")
    required = given.default is inspect.Parameter.empty
    default = None if required else str(given.default) if isinstance(given.default, Path) else given.default
    if option.given:
        return Parameter(given.name, option.given, option)
    if get_origin(kind) in (Union, UnionType):
        kind = Union[*(part for part in get_args(kind) if part is not type(None))]  # of one type: the type
    if repeated := get_origin(kind) is list:
        (kind,) = get_args(kind)
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if option.parse is None and not choices and kind not in _KINDS:
        raise TypeError(f"parameter {given.name!r} is {kind}: give Option a function that reads it from text, parse=")
    word = "text" if option.parse is not None else _KINDS.get(kind, "str")
    argument = option.argument or (required and given.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return Parameter(given.name, word, option, required, default, choices, repeated, argument)

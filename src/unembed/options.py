"""The options of analyses and commands: each name has one meaning, one type and one help text.

A parameter is declared by its annotation, `Annotated[int, Option("What it means.")]`. Annotations that several
functions share are defined here and have a name, such as `Top`: `top: Top = 20`. `parameter_of` reads a function's
signature and returns what the command line and the explorer's HTTP API need to know about each parameter.
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
    """How the command line and the explorer's HTTP API name, explain and parse a parameter of a function.

    Attributes:
        help: what the parameter means, in one sentence.
        letter: the letter of the short option, such as "k" for `-k`.
        low: the smallest number allowed.
        high: the largest number allowed.
        metavar: the placeholder for the value in help texts, such as "FILE"; chosen by type when empty.
        argument: True for a positional argument of the command that has a default.
        parse: function that converts the text to the value; it raises `InvalidInput` if the text is malformed.
        aliases: former names of the option, such as "--answer", which are accepted but not listed in help texts.
        name: the option's name where it differs from the parameter's: "json" for `as_json`.
        off: the option that turns a switch off, such as "--as-written"; when empty, a switch that is on by default has
            the form "--no-NAME".
        hidden: True for an option that is accepted but not listed in help texts.
        variable: an environment variable with the value to use when the option is not given on the command line.
        given: the kind of a parameter that is not a plain option, because the command line and the HTTP API each
            obtain the value in their own way. "edits": changes made during the forward pass. "prompts": texts or token
            ids. "progress": a function that is called with the name of a stage, the steps done and the total. "index":
            the model's index (`IndexOnNeed`). "offline" and "device": how the model was opened.
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
    """A parameter of a function, as its signature describes it.

    Attributes:
        kind: the type: "int", "float", "str", "bool" or "path"; "text" where `Option.parse` converts the text; or the
            value of `Option.given`.
        required: True if there is no default.
        repeated: True if the parameter is a list, whose option may be repeated.
        argument: True for a positional argument of the command, False for an option.
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
    """A function that returns the model's index, and opens or builds it only when it is called."""

    @property
    def is_chosen(self) -> bool:
        """True if the user named this index; False for the model's default index in the cache folder."""
        ...

    def __call__(self, *, build: bool = True, opened: bool = True) -> Any:
        """Return the index; None if there is none.

        Args:
            build: allow building the default index if it does not exist yet.
            opened: allow loading the model to find its index; False to look the index up by the stored hash of the
                model's weights.
        """
        ...


_KINDS = {int: "int", float: "float", str: "str", bool: "bool", Path: "path"}

Prompt = Annotated[str, Option("The text to run the model on.")]
Top = Annotated[int, Option("Number of rows to list.", "k", low=1)]
Tokens = Annotated[int, Option("Number of tokens to list for each vector or position.", low=1, aliases=("--top", "-k"))]
TokensOrFew = Annotated[
    int | None, Option("Number of tokens to list for each vector or position.", low=1, aliases=("--top", "-k"))
]
TopTokens = Annotated[
    int,
    Option(
        "Number of tokens to use for each memory (FFN neuron): those that it promotes most.",
        low=4,
        aliases=("--top", "-k"),
    ),
]
Position = Annotated[int, Option("Token position, counted from 0; negative positions count from the end.", "p")]
Layer = Annotated[int | None, Option("Only this layer, counted from 0.", "l")]
Layers = Annotated[list[int] | None, Option("Only this layer, counted from 0; repeatable.", "l", aliases=("--layer",))]
Token = Annotated[
    str | None,
    Option(
        "The token to explain, with its leading space; default: the model's prediction.", "t", aliases=("--answer",)
    ),
]
Against = Annotated[
    str | None,
    Option("Explain the logit of --token minus that of this token."),
]
Corpus = Annotated[
    str | None,
    Option(
        "The text to use: a file, a folder, a glob pattern, or the word 'shipped', which means the WikiText sample "
        "in the package (the default of commands that need a text).",
        "c",
    ),
]
MaxTokens = Annotated[int, Option("Run the model on at most this number of tokens.", low=1, aliases=("--tokens",))]
LensFile = Annotated[
    str | None,
    Option(
        "Lens that maps the residual stream and value vectors to tokens: a file written by unembed fit-lens, or the "
        "word 'none' for the logit lens. Default: the lens stored for this model, if there is one.",
        metavar="FILE",
    ),
]
Seed = Annotated[int, Option("Seed of all random choices.")]
AnySeed = Annotated[int | None, Option("Seed of all random choices.")]
"""If None, text is generated greedily (the likeliest token each time), and random examples are drawn with a fixed
seed."""
UnusedSeed = Annotated[int | None, Option("Seed of all random choices.", hidden=True)]
"""For analyses without random choices: every command accepts --seed, but here the help does not list it. The seed is
recorded in the provenance of the result."""
_HOW_NORMS = (
    "How a vector becomes scores of tokens. raw: the weights or the unembedding alone, as in the papers; final: with "
    "the final norm; frozen: with the final norm at the scale it had in the forward pass; folded: with the gains of "
    "the norms, the default of circuits; jacobian: by the lens fitted on text, the default where there is one (else "
    "final for the residual stream, raw for value vectors)."
)
ReadingBasis = Annotated[Basis | None, Option(_HOW_NORMS)]
ValueBasis = Annotated[Literal["raw", "final", "jacobian"] | None, Option(_HOW_NORMS)]
"""Without "frozen": a value vector is a weight, so there is no forward pass to take the norm's scale from."""
ExitBasis = Annotated[Literal["final", "jacobian"] | None, Option(_HOW_NORMS)]
"""Only bases in which a vector gives a probability distribution over tokens, which early-exit rules need."""
CircuitBasis = Annotated[HeadBasis | None, Option(_HOW_NORMS)]
ReadPoint = Annotated[
    StreamPoint,
    Option("Activation to read, by its capture point, such as resid_post (the residual stream after a layer)."),
]
Head = Annotated[HeadAddress, Option("An attention head, such as L0H3 or 0.3 (layer 0, head 3).", parse=parse_head)]
Without = Annotated[Sequence[HeadAddress], Option('Attention heads to ablate, such as "L1H0,L1H6".', parse=parse_heads)]
Memory = Annotated[
    SignedMemory,
    Option(
        "A memory (FFN neuron), such as L5M278; -L5M278 is the same memory at negative coefficients.",
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
        "Include tokens that the model never learned: those that hardly occur in its training text, or, if their "
        "counts are not known, those whose unembedding vectors look untrained.",
        off="--hide-unlearned",
    ),
]
ShowAll = Annotated[
    bool,
    Option(
        "Show every row in the terminal; for a trace, also every layer and every component that adds to the logit.",
        name="all",
    ),
]
AnySide = Annotated[
    Pole | None,
    Option(
        "Only triggers with positive, or only with negative, coefficients; default: both (only gated layers have "
        "negative ones)."
    ),
]
Context = Annotated[int | None, Option("Number of tokens to show before each trigger; default: as many as fit.", low=0)]
IndexFolder = Annotated[
    Path | None, Option("Folder of the model's index; default: the one in the cache folder.", metavar="DIR")
]
OUT = Option("The file or folder to write.", "o")
Out = Annotated[Path | None, OUT]
Places = Annotated[int, Option("Number of text positions at which to add each value vector.", low=1)]
PerLayer = Annotated[int, Option("Number of memories (FFN neurons) to draw at random from each layer.", low=1)]
Samples = Annotated[int, Option("Number of continuations of each prompt; more than one needs --seed.", low=1)]
Clusters = Annotated[int | None, Option("Number of clusters of value vectors.", low=1, name="clusters")]
NewTokens = Annotated[int, Option("Number of tokens to generate.", "n", low=1)]
Dictionaries = Annotated[
    list[str] | None,
    Option(
        "Use the features of this dictionary (sparse autoencoder or transcoder) as nodes; a transcoder's features take "
        "the place of the memories (FFN neurons). A folder or a Hugging Face id; repeatable, for several layers.",
        name="dictionary",
        metavar="FOLDER",
    ),
]
Coefficient = Annotated[
    float, Option("Coefficient to set for each memory (FFN neuron) whose value vector is added to steer the model.")
]
Clean = Annotated[str, Option("The clean prompt, on which the model shows the behaviour.")]
Corrupted = Annotated[str, Option("The corrupted prompt, on which the model does not show the behaviour.")]
Noising = Annotated[bool, Option("Patch activations of the corrupted run into the clean run; default: the reverse.")]
Align = Annotated[bool, Option("Align the tokens of two prompts of different lengths.")]
Edits = Annotated[Sequence[Any], Option("Changes to make during the forward pass.", given="edits")]
EditFiles = Annotated[list[Path] | None, Option("A file of saved edits; repeatable.", metavar="FILE", name="edits")]
_ATLAS = "Folder of the model's atlas, which describes memories."
Atlas = Annotated[Path | None, Option(_ATLAS, metavar="DIR")]
ThisAtlas = Annotated[Path, Option(_ATLAS, metavar="DIR", argument=True)]
SaveEdits = Annotated[Path | None, Option("Write the edits to this JSON file, which --edits reads.")]
MemoryValues = Annotated[
    list[MemoryValue] | None,
    Option(
        "Set the coefficient of a memory (FFN neuron) at every position: L5M278=0, or L5M278=x3 for three times its "
        "typical size (the root mean square over text); repeatable.",
        metavar="MEMORY=VALUE",
        name="set",
        parse=read_memory_value,
    ),
]
Progress = Annotated[
    Callable[[str, int, int | None], None] | None,
    Option("Function to call with progress reports while the analysis runs.", given="progress"),
]
Index = Annotated[
    IndexOnNeed,
    Option("Folder of the model's index; default: the one in the cache folder.", metavar="DIR", given="index"),
]
Prompts = Annotated[Sequence[Any], Option("Texts to run the model on, or their token ids.", given="prompts")]
Offline = Annotated[bool, Option("Use only files on this machine; download nothing.", given="offline")]
Device = Annotated[str | None, Option("Device that the model is on.", given="device")]


def parameter_of(given: inspect.Parameter, function: Callable[..., Any]) -> Parameter:
    """Return a parameter of a function with what its annotation says.

    Raises:
        TypeError: the annotation has no `Option`, or its type cannot be read from text and `Option.parse` is missing.
    """
    hint: Any = given.annotation  # a string in a module with `from __future__ import annotations`
    hint = eval(hint, inspect.unwrap(function).__globals__) if isinstance(hint, str) else hint
    kind, option = get_args(hint) if get_origin(hint) is Annotated else (hint, None)
    if not isinstance(option, Option):
        raise TypeError(f"parameter {given.name!r} has no help: annotate it with Annotated[..., Option(...)]")
    required = given.default is inspect.Parameter.empty
    default = None if required else str(given.default) if isinstance(given.default, Path) else given.default
    if option.given:
        return Parameter(given.name, option.given, option)
    if get_origin(kind) in (Union, UnionType):
        kind = Union[*(part for part in get_args(kind) if part is not type(None))]  # `X | None` becomes `X`
    if repeated := get_origin(kind) is list:
        (kind,) = get_args(kind)
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if option.parse is None and not choices and kind not in _KINDS:
        raise TypeError(
            f"parameter {given.name!r} has type {kind}, which needs Option(parse=...) to convert text to it"
        )
    word = "text" if option.parse is not None else _KINDS.get(kind, "str")
    argument = option.argument or (required and given.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return Parameter(given.name, word, option, required, default, choices, repeated, argument)

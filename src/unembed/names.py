"""The terms of the package as data: capture points, their axes, bases and tolerances.

All code reads the terms from here, so that each has the same meaning everywhere.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, get_args

from unembed.errors import InvalidInput

Point = Literal[
    "resid_pre",
    "resid_mid",
    "resid_post",
    "attn_in",
    "attn_out",
    "mlp_in",
    "mlp_out",
    "q",
    "k",
    "v",
    "scores",
    "pattern",
    "z",
    "gate",
    "up",
    "coefficients",
    "gate_weights",
]
"""The points at which a run can capture tensors. `attn_out` and `mlp_out` are what is ADDED to the stream: after norm
and multiplier."""

StreamPoint = Literal["resid_pre", "resid_mid", "resid_post"]
LogitLensBasis = Literal["raw", "final", "frozen"]
"""How norms are treated in a reading: `raw` is W_U alone, `final` the real final norm and readout, `frozen` keeps the
scale that the final norm had in the run, so that parts of a vector add up."""
Basis = Literal[LogitLensBasis, "jacobian"]
"""The bases of the logit lens, which takes the remaining layers for the identity; and `jacobian`, the lens that was
fitted on text, which carries a vector through them by their mean derivative."""

LinearBasis = Literal["raw", "jacobian"]
"""The bases in which the score of a sum is the sum of the scores, up to a constant."""

HeadBasis = Literal["raw", "folded"]
"""The same for circuits of heads: `raw` the weights alone, `folded` with the gains of the norms that feed them."""
ScoreBasis = Literal["raw", "frozen", "adaptive"]
"""The score of a sub-update: e_w . m_i v_i; the same through both norms; for an adaptive softmax only, how far the
sub-update alone moves log p(w), in nats."""

Positions = Literal["all", "last"]
By = Literal["component", "head", "source", "memory"]
"""The parts to which a logit is attributed: attention and FFN of each layer, heads, heads by source token, memories."""
PromotedBy = Literal["score", "rank"]
FiredBy = Literal["strength", "coefficient"]
"""The orders in which an index lists values that promote a token, and keys that fire on a text."""
Pole = Literal["positive", "negative"]
"""The sign of the coefficients at which a key fires."""
Among = Literal["values", "keys"]
Poles = Literal["auto", "positive", "both"]
ReadPoles = Literal["both", "named"]
"""At which poles the values of gated memories are read: both, or the one that is named."""
TriggersBy = Literal["product", "gate"]
"""The order of a key's triggers in a gated layer: by the coefficient, or by the gate before its activation."""
Mode = Literal["q", "k", "v"]
"""Which input of a later head reads what an earlier head adds."""
AblatedTo = Literal["zero", "mean", "resample"]
"""What replaces an ablated activation; "resample", the activations of other segments, over a corpus only."""
SetTo = Literal["mean", "counterfactual", "corpus", "zero"]
"""What nodes outside a circuit are set to: the mean of the counterfactual prompts at the position, the prompt's own
counterfactual, the mean over a text, or 0."""
CircuitNodes = Literal["memories", "heads", "all"]
"""What the nodes of a circuit's test are: memories alone, heads alone, or both."""
RankedBy = Literal["relevance", "gradient", "difference", "coefficient"]
"""The order in which a test takes nodes: by relevance; by the plain gradient times the change between two prompts; by
the size of the change; by the size of the node's own number."""
QKRule = Literal["constant", "shared"]
"""How relevance passes attention: "constant", through values alone, with patterns as they are in the run; "shared",
half of a head's relevance through its pattern to queries and keys."""
GroupRule = Literal["role", "values", "description"]
"""How a circuit's nodes are grouped: by what they do in it, by the direction of their values, or by what the tokens
that their values promote have in common."""
GroupChange = Literal["silence", "scale", "patch"]
"""How a group of nodes is changed: set to 0, multiplied, or set to its values in the counterfactual."""
PatchPoint = Literal["resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "z", "pattern", "coefficients"]
"""The points at which activation patching replaces a run's tensors with another's."""

POINTS: tuple[str, ...] = get_args(Point)
STREAM_POINTS: tuple[str, ...] = get_args(StreamPoint)
BASES: tuple[str, ...] = get_args(Basis)
LOGIT_LENS_BASES: tuple[str, ...] = get_args(LogitLensBasis)
HEAD_BASES: tuple[str, ...] = get_args(HeadBasis)
SCORE_BASES: tuple[str, ...] = get_args(ScoreBasis)
BY: tuple[str, ...] = get_args(By)
PATCH_POINTS: tuple[str, ...] = get_args(PatchPoint)

SUM_TOLERANCE: dict[str, float] = {"float64": 1e-10, "float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}
"""Largest relative error of a sum of writers against the tensor it decomposes, by the model's dtype."""

MemoryIndex = int | tuple[int | None, int]
"""A memory within its layer: its number, or (expert, index) where memories belong to experts; expert None means
the shared expert."""

MemoryAddress = tuple[int, MemoryIndex]
"""Layer and index of a memory; written L5M278."""


class SignedMemory(NamedTuple):
    """A memory at one sign of its coefficient; written L5M278, or -L5M278 if the coefficient is negative.

    In a gated layer a memory fires with either sign, and what it promotes at one sign it suppresses at the other.
    """

    layer: int
    index: MemoryIndex
    pole: Pole = "positive"

    @property
    def sign(self) -> int:
        """1, or -1 at the negative pole."""
        return -1 if self.pole == "negative" else 1

    @property
    def address(self) -> MemoryAddress:
        """Layer and index alone."""
        return self.layer, self.index


_MEMORY = re.compile(
    r"(?:(?P<minus>[-\u2212])(?=L))?L?(?P<layer>\d{1,6})"
    r"(?:[.M](?P<number>\d{1,9})|E(?P<expert>\d{1,6})M(?P<index>\d{1,9})|SM(?P<shared>\d{1,9}))"
)
"""The minus sign may be the one of typography, too."""


NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
VALUE = re.compile(rf"(?P<target>[^=]+)=\s*(?P<value>{NUMBER})")
"""A part and its number: L5M278=3, ffn3=0.5."""
_HEAD = re.compile(r"L(\d{1,6})H(\d{1,6})")


def memory_name(
    layer: int, number: MemoryIndex, experts: tuple[int, int] | None = None, pole: Pole = "positive"
) -> str:
    """Write the name of a memory: L5M278, or L12E7M345 in a layer of experts, L12SM3 in the shared expert.

    Args:
        number: the number of the memory in its layer; or (expert, number), as `parse_memory` returns it.
        experts: how many routed experts the layer has, and how many memories each; None without experts.
        pole: "negative" for the memory at negative coefficients: -L5M278.
    """
    sign = "-" if pole == "negative" else ""
    if isinstance(number, tuple):
        expert, number = number
        return f"{sign}L{layer}SM{number}" if expert is None else f"{sign}L{layer}E{expert}M{number}"
    if experts is None:
        return f"{sign}L{layer}M{number}"
    n, width = experts
    if number >= n * width:
        return f"{sign}L{layer}SM{number - n * width}"
    return f"{sign}L{layer}E{number // width}M{number % width}"


def parse_signed_memory(text: str) -> SignedMemory | None:
    """Return layer, index and pole of a memory's name (L5M278, -L5M278, 5.278, L12E7M345, L12SM3), else None."""
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        return None
    layer, pole = int(match["layer"]), "negative" if match["minus"] else "positive"
    if match["number"] is not None:
        return SignedMemory(layer, int(match["number"]), pole)
    if match["shared"] is not None:
        return SignedMemory(layer, (None, int(match["shared"])), pole)
    return SignedMemory(layer, (int(match["expert"]), int(match["index"])), pole)


def parse_memory(text: str) -> MemoryAddress | None:
    """Return layer and index of a memory's name, at either pole; None for any other text."""
    named = parse_signed_memory(text)
    return None if named is None else named.address


def read_signed_memory(text: str) -> SignedMemory:
    """Read layer, index and pole of a memory written L5M278 or 5.278; -L5M278 is its negative pole.

    Raises:
        InvalidInput: the text is not of that form.
    """
    named = parse_signed_memory(text)
    if named is None:
        raise InvalidInput(f"{text!r} is not a memory, such as L5M733")
    return named


def read_memory(text: str) -> MemoryAddress:
    """Read layer and index of a memory written L5M278 or 5.278; for an expert's, the index is (expert, index).

    -L5M278 is the same memory at its negative pole: `read_signed_memory` tells the two apart.

    Raises:
        InvalidInput: the text is not of that form.
    """
    return read_signed_memory(text).address


class MemoryValue(NamedTuple):
    """A memory and a coefficient; written L5M278=3, or L5M278=x3 for three times the memory's usual size."""

    layer: int
    index: MemoryIndex
    value: float
    in_usual: bool = False
    """Whether the value is in units of the memory's usual size."""


_MEMORY_VALUE = re.compile(rf"(?P<target>[^=]+)=\s*(?P<usual>[x\u00d7]\s*)?(?P<value>{NUMBER})")


def read_memory_value(text: str) -> MemoryValue:
    """Read layer, index and number from MEMORY=NUMBER or MEMORY=xNUMBER; for -L5M278=3, the number is -3.

    Raises:
        InvalidInput: the text is not of that form.
    """
    match = _MEMORY_VALUE.fullmatch(text.strip())
    named = None if match is None else parse_signed_memory(match["target"])
    if match is None or named is None:
        raise InvalidInput(f"{text!r} is not a memory and a value, such as L5M733=3.0 or L5M733=x3")
    return MemoryValue(*named.address, named.sign * float(match["value"]), match["usual"] is not None)


class HeadAddress(NamedTuple):
    """A head; written L0H3."""

    layer: int
    head: int

    def __str__(self) -> str:
        return head_name(*self)


def head_name(layer: int, head: int) -> str:
    """Write the name of a head: L0H3."""
    return f"L{layer}H{head}"


def head_named(text: str) -> HeadAddress | None:
    """Return the head with this name (L0H3); None for any other text."""
    match = _HEAD.fullmatch(text.strip())
    return None if match is None else HeadAddress(int(match[1]), int(match[2]))


def parse_head(text: str) -> HeadAddress:
    """Read layer and head of a head written L0H3 or 0.3.

    Raises:
        InvalidInput: the text is not of that form.
    """
    match = re.fullmatch(r"L?(\d{1,6})[.H](\d{1,6})", text.strip())
    if match is None:
        raise InvalidInput(f"{text!r} is not a head, such as L0H3")
    return HeadAddress(int(match[1]), int(match[2]))


def parse_heads(text: str) -> tuple[HeadAddress, ...]:
    """Read heads written L0H3,L1H2.

    Raises:
        InvalidInput: a part of the text is not a head.
    """
    return tuple(parse_head(part) for part in text.split(",") if part.strip())

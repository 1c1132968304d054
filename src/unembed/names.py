"""Names that the whole package uses: capture points, bases of the logit lens, names of memories and heads, tolerances.

They are defined only here, so that each has the same meaning everywhere.
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
"""The points of a forward pass at which tensors can be captured. `attn_out` and `mlp_out` are the vectors that are
added to the residual stream. If a model applies a norm or a multiplier to them first, they are captured after it."""

StreamPoint = Literal["resid_pre", "resid_mid", "resid_post"]
LogitLensBasis = Literal["raw", "final", "frozen"]
"""How the logit lens treats the final norm: `raw` leaves it out (W_U alone), `final` applies it, `frozen` applies it
with the scale that it had in the forward pass, so that the logits of a sum are the sum of the logits."""
Basis = Literal[LogitLensBasis, "jacobian"]
"""The bases of the logit lens, which ignores the remaining layers; and `jacobian`, the lens fitted on text, which
multiplies a vector by the mean Jacobian of the remaining layers first."""

HeadBasis = Literal["raw", "folded"]
"""How QK and OV circuits of heads treat norms: `raw` leaves them out, `folded` multiplies the weights by the gains of
the norms before them."""
ScoreBasis = Literal["raw", "frozen", "adaptive"]
"""How to score a sub-update (a memory's coefficient times its value vector, m_i v_i) for a token w. `raw`:
e_w . m_i v_i. `frozen`: the same, with the norms at their scale in the forward pass. `adaptive`, for an adaptive
softmax only: the change of log p(w) through the sub-update alone, in nats."""

Positions = Literal["all", "last"]
By = Literal["component", "head", "source", "memory"]
"""The components to which a logit is attributed: attention and FFN of each layer, heads, heads by source token, or
memories."""
PromotedBy = Literal["score", "rank"]
FiredBy = Literal["strength", "coefficient"]
"""How an index sorts the memories that fire on a text: by coefficient, or by strength, which is the coefficient divided
by the memory's largest one. `PromotedBy` is how it sorts the value vectors that promote a token."""
Pole = Literal["positive", "negative"]
"""The sign of a memory's coefficient. Memories of gated layers fire with either sign."""
Among = Literal["values", "keys"]
Poles = Literal["auto", "positive", "both"]
ReadPoles = Literal["both", "named"]
"""Whether to list the tokens of a gated memory for both signs of its coefficient, or only for the sign in its name."""
TriggersBy = Literal["product", "gate"]
"""How to sort the texts on which a memory of a gated layer fires: by its coefficient (`product`), or by its gate before
the activation function."""
Mode = Literal["q", "k", "v"]
"""The input of a later head (query, key or value) that reads the output of an earlier head."""
AblatedTo = Literal["zero", "mean", "resample"]
"""What replaces an ablated activation: zero, its mean, or ("resample", over a corpus only) its values in other
segments of text."""
SetTo = Literal["mean", "counterfactual", "corpus", "zero"]
"""What nodes outside a circuit are set to: their mean over the counterfactual prompts at the same position, their value
in the counterfactual of the same prompt, their mean over a text, or 0."""
CircuitNodes = Literal["memories", "heads", "all"]
"""The nodes of a circuit that a test uses: memories alone, heads alone, or both."""
RankedBy = Literal["relevance", "supporting", "gradient", "difference", "coefficient"]
"""How a test sorts the nodes of a circuit: by the size of their relevance; by relevance, without nodes whose relevance
is negative; by gradient times the difference between two prompts; by the size of that difference; or by the size of the
node's activation."""
QKRule = Literal["constant", "shared"]
"""How relevance propagates back through attention. "constant": attention patterns are treated as constants, so all
relevance goes to the values. "shared": half of a head's relevance goes through its pattern to queries and keys."""
GroupRule = Literal["role", "values", "description"]
"""How a circuit's nodes are grouped: by their role in the circuit, by the direction of their value vectors, or by what
the tokens that their value vectors promote have in common."""
GroupChange = Literal["silence", "scale", "patch"]
"""How to change a group of nodes: set them to 0, multiply them, or set them to their values on the counterfactual
prompt."""
PatchPoint = Literal["resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "z", "pattern", "coefficients"]
"""The points at which activation patching can replace the tensors of one forward pass with those of another."""

POINTS: tuple[str, ...] = get_args(Point)
STREAM_POINTS: tuple[str, ...] = get_args(StreamPoint)
BASES: tuple[str, ...] = get_args(Basis)
LOGIT_LENS_BASES: tuple[str, ...] = get_args(LogitLensBasis)
HEAD_BASES: tuple[str, ...] = get_args(HeadBasis)
SCORE_BASES: tuple[str, ...] = get_args(ScoreBasis)
BY: tuple[str, ...] = get_args(By)
PATCH_POINTS: tuple[str, ...] = get_args(PatchPoint)

SUM_TOLERANCE: dict[str, float] = {"float64": 1e-10, "float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}
"""For each dtype of a model, the largest relative error at which a sum of contributions counts as equal to the tensor
that it decomposes."""

MemoryIndex = int | tuple[int | None, int]
"""A memory within its layer: its index, or (expert, index) in a mixture-of-experts layer; expert None means the shared
expert."""

MemoryAddress = tuple[int, MemoryIndex]
"""Layer and index of a memory; written L5M278."""


class SignedMemory(NamedTuple):
    """A memory and a sign of its coefficient; written L5M278, or -L5M278 for negative coefficients.

    In a gated layer a memory fires with either sign. The tokens that it promotes with one sign it suppresses with the
    other.
    """

    layer: int
    index: MemoryIndex
    pole: Pole = "positive"

    @property
    def sign(self) -> int:
        """1, or -1 for negative coefficients."""
        return -1 if self.pole == "negative" else 1

    @property
    def address(self) -> MemoryAddress:
        """Layer and index, without the sign."""
        return self.layer, self.index


_MEMORY = re.compile(
    r"(?:(?P<minus>[-\u2212])(?=L))?L?(?P<layer>\d{1,6})"
    r"(?:[.M](?P<number>\d{1,9})|E(?P<expert>\d{1,6})M(?P<index>\d{1,9})|SM(?P<shared>\d{1,9}))"
)
"""Matches the name of a memory, such as L5M278 or -L5M278; the minus sign may be a hyphen or U+2212."""


NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
VALUE = re.compile(rf"(?P<target>[^=]+)=\s*(?P<value>{NUMBER})")
"""The name of a component and a number: L5M278=3, ffn3=0.5."""
_HEAD = re.compile(r"L(\d{1,6})H(\d{1,6})")


def memory_name(
    layer: int, number: MemoryIndex, experts: tuple[int, int] | None = None, pole: Pole = "positive"
) -> str:
    """Return the name of a memory: L5M278; L12E7M345 in expert 7 of a mixture of experts, L12SM3 in the shared expert.

    Args:
        number: the index of the memory in its layer; or (expert, index), as `parse_memory` returns it.
        experts: the number of routed experts in the layer and of memories in each; None without experts.
        pole: "negative" to name the memory at negative coefficients: -L5M278.
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
    """Parse a memory's name (L5M278, -L5M278, 5.278, L12E7M345, L12SM3); None for any other text."""
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
    """Return layer and index of a memory's name, which may have a minus sign; None for any other text."""
    named = parse_signed_memory(text)
    return None if named is None else named.address


def read_signed_memory(text: str) -> SignedMemory:
    """Parse the name of a memory, L5M278 or 5.278; -L5M278 names it at negative coefficients.

    Raises:
        InvalidInput: the text is not such a name.
    """
    named = parse_signed_memory(text)
    if named is None:
        head = head_named(text)
        instead = "" if head is None else f"It is an attention head: unembed circuits head {head} shows it"
        raise InvalidInput(f"{text!r} is not a memory, such as L5M733", instead=instead)
    return named


def read_memory(text: str) -> MemoryAddress:
    """Return layer and index of a memory's name, L5M278 or 5.278; for L12E7M345 the index is (7, 345).

    A minus sign, as in -L5M278, is ignored; `read_signed_memory` returns it.

    Raises:
        InvalidInput: the text is not such a name.
    """
    return read_signed_memory(text).address


class MemoryValue(NamedTuple):
    """A memory and a coefficient; written L5M278=3, or L5M278=x3 for three times its typical coefficient on text."""

    layer: int
    index: MemoryIndex
    value: float
    in_usual: bool = False
    """True if `value` is a multiple of the typical size of the memory's coefficient on text."""


_MEMORY_VALUE = re.compile(rf"(?P<target>[^=]+)=\s*(?P<usual>[x\u00d7]\s*)?(?P<value>{NUMBER})")


def read_memory_value(text: str) -> MemoryValue:
    """Parse MEMORY=NUMBER or MEMORY=xNUMBER; for -L5M278=3, the value is -3.

    Raises:
        InvalidInput: the text does not have that form.
    """
    match = _MEMORY_VALUE.fullmatch(text.strip())
    named = None if match is None else parse_signed_memory(match["target"])
    if match is None or named is None:
        raise InvalidInput(f"{text!r} is not a memory and a value, such as L5M733=3.0 or L5M733=x3")
    return MemoryValue(*named.address, named.sign * float(match["value"]), match["usual"] is not None)


class HeadAddress(NamedTuple):
    """An attention head; written L0H3."""

    layer: int
    head: int

    def __str__(self) -> str:
        return head_name(*self)


def head_name(layer: int, head: int) -> str:
    """Return the name of a head, such as L0H3."""
    return f"L{layer}H{head}"


def head_named(text: str) -> HeadAddress | None:
    """Parse the name of a head, such as L0H3; None for any other text."""
    match = _HEAD.fullmatch(text.strip())
    return None if match is None else HeadAddress(int(match[1]), int(match[2]))


def parse_head(text: str) -> HeadAddress:
    """Parse the name of a head, L0H3 or 0.3.

    Raises:
        InvalidInput: the text is not such a name.
    """
    match = re.fullmatch(r"L?(\d{1,6})[.H](\d{1,6})", text.strip())
    if match is None:
        raise InvalidInput(f"{text!r} is not a head, such as L0H3")
    return HeadAddress(int(match[1]), int(match[2]))


def parse_heads(text: str) -> tuple[HeadAddress, ...]:
    """Parse names of heads separated by commas, such as L0H3,L1H2.

    Raises:
        InvalidInput: one of them is not the name of a head.
    """
    return tuple(parse_head(part) for part in text.split(",") if part.strip())

"""Edits: changes to make during a forward pass, to coefficients, heads, layers or the residual stream.

An edit is a plain object that can be saved, compared and printed. It applies to all positions, to the last one or to
chosen ones, and works in the same way in a run, a trace and a generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unembed.errors import InvalidInput, Unsupported
from unembed.names import MemoryIndex, Positions
from unembed.results import format_number, format_setting
from unembed.validation import MAX_COUNT, as_int, as_tuple, finite_float, positive_int

if TYPE_CHECKING:
    from unembed.models.decoder import Decoder

Where = Positions | tuple[int, ...]
At = Positions | int | Sequence[int]
Target = Literal["coefficient", "head", "attention", "ffn", "stream", "feature"]
EDITED_POINTS = {
    "coefficient": "coefficients",
    "head": "z",
    "attention": "attn_out",
    "ffn": "mlp_out",
    "stream": "resid_post",
}
"""The capture point whose tensor an edit changes, by the edit's target; a feature is changed by its dictionary."""


@dataclass(frozen=True)
class Edit:
    """One change. `index` is a memory or head (0 for a whole layer); `value` is a coefficient or a factor.

    A memory (FFN neuron) of an expert may be given as (expert, index); `checked` converts this to its number in the
    layer.
    """

    target: Target
    action: Literal["set", "scale", "add"]
    layer: int
    index: MemoryIndex
    value: float
    positions: Where = "all"
    vector: tuple[float, ...] | None = None
    """For the target "stream": the vector that, times `value`, is added to the stream after the layer or replaces
    it."""

    def __post_init__(self) -> None:
        """Refuse NaN and infinity, which would spread through the model, and fields that do not fit together."""
        object.__setattr__(self, "value", finite_float("edit value", self.value))
        if (self.vector is None) == (self.target == "stream"):
            why = "it needs a vector" if self.vector is None else 'only edits of "stream" take a vector'
            raise InvalidInput(f"an edit of {self.target!r}", why=why)
        if self.vector is not None:
            object.__setattr__(self, "vector", tuple(finite_float("a vector's number", x) for x in self.vector))
        if isinstance(self.positions, str) and self.positions not in ("all", "last"):
            raise InvalidInput(
                f"positions {self.positions!r}", why='they must be "all", "last" or a sequence of numbers'
            )

    def applied(self, numbers: Tensor) -> Tensor:
        """Return a changed copy of the values to which the edit applies."""
        if self.vector is not None:
            vector = self.value * torch.tensor(self.vector, dtype=torch.float32, device=numbers.device)
            return (numbers + vector if self.action == "add" else vector.expand_as(numbers)).to(numbers.dtype)
        if self.action == "set":
            return torch.full_like(numbers, self.value)
        return numbers * self.value if self.action == "scale" else numbers + self.value

    def to_dict(self) -> dict[str, Any]:
        """Return the edit as a dict of plain data, to be saved."""
        data = asdict(self)
        return data if self.vector is not None else {k: v for k, v in data.items() if k != "vector"}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Edit:
        """Return the edit that `to_dict` converted to this dict."""
        try:
            given: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in data.items()}
            return cls(**given)
        except (AttributeError, TypeError) as error:
            raise InvalidInput(f"edit {data!r:.80}", why=str(error), instead="Give what to_dict() returned") from error


def _where(positions: At) -> Where:
    if isinstance(positions, str):
        return positions  # type: ignore[return-value]  (checked by Edit)
    many = positions if isinstance(positions, Iterable) and getattr(positions, "ndim", 1) else [positions]
    return tuple(positive_int("position", p, -MAX_COUNT) for p in many)


def set_coefficient(layer: int, index: MemoryIndex, to: float, positions: At = "all") -> Edit:
    """Set a memory's coefficient to `to`, whatever the input is. Source: Geva et al. 2022, section 6.1."""
    return Edit("coefficient", "set", layer, index, to, _where(positions))


def scale_coefficient(layer: int, index: MemoryIndex, by: float, positions: At = "all") -> Edit:
    """Multiply a memory's coefficient by a factor; 0 removes the memory's contribution."""
    return Edit("coefficient", "scale", layer, index, by, _where(positions))


def add_to_coefficient(layer: int, index: MemoryIndex, amount: float, positions: At = "all") -> Edit:
    """Add a number to a memory's coefficient."""
    return Edit("coefficient", "add", layer, index, amount, _where(positions))


def scale_head(layer: int, head: int, by: float, positions: At = "all") -> Edit:
    """Multiply the output of a head (z, before W_O) by a factor; 0 ablates the head."""
    return Edit("head", "scale", layer, head, by, _where(positions))


def scale_attention(layer: int, by: float, positions: At = "all") -> Edit:
    """Multiply the output of a layer's attention by a factor; 0 ablates it."""
    return Edit("attention", "scale", layer, 0, by, _where(positions))


def scale_ffn(layer: int, by: float, positions: At = "all") -> Edit:
    """Multiply the output of a layer's FFN by a factor; 0 ablates it."""
    return Edit("ffn", "scale", layer, 0, by, _where(positions))


def add_vector(
    layer: int,
    vector: Float[Tensor, " d_model"] | Sequence[float],
    scale: float = 1.0,
    positions: At = "all",
) -> Edit:
    """Add a vector, times `scale`, to the residual stream after a layer (`resid_post`), which is called steering.

    Source: Turner et al. 2023, "Activation addition".
    """
    return Edit("stream", "add", layer, 0, scale, _where(positions), _numbers(vector))


def replace_stream(layer: int, vector: Float[Tensor, " d_model"] | Sequence[float], positions: At = "last") -> Edit:
    """Replace the residual stream after a layer (`resid_post`) by a vector."""
    return Edit("stream", "set", layer, 0, 1.0, _where(positions), _numbers(vector))


def _numbers(vector: Float[Tensor, " d_model"] | Sequence[float]) -> tuple[float, ...]:
    return tuple(torch.as_tensor(vector, dtype=torch.float64).flatten().tolist())


Edits = Sequence[Edit] | Edit | None
"""The changes to make in a run, in order: several edits, one, or none."""


def as_edits(edits: Edits) -> tuple[Edit, ...]:
    """Return edits as a tuple, given one edit, several or None.

    Raises:
        InvalidInput: `edits` is something else.
    """
    if edits is None or isinstance(edits, Edit):
        return () if edits is None else (edits,)
    found = as_tuple("edits", edits)
    for edit in found:
        if not isinstance(edit, Edit):
            raise InvalidInput(
                f"edit {edit!r:.60}",
                why="it is not an edit",
                instead="Make one with set_coefficient or scale_head",
            )
    return found


def checked(lm: Decoder, edits: Edits) -> tuple[Edit, ...]:
    """Check that the layers and indices of edits exist in this model, and return the edits with both counted from 0.

    Raises:
        OutOfRange: the model does not have a layer, memory or head of an edit.
        Unsupported: an edit changes a memory in a layer without memories, or something that cannot be edited.
        InvalidInput: `edits` are not edits, or a value is out of the range of the model's dtype.
    """
    found = []
    most = torch.finfo(lm.dtype).max
    for edit in as_edits(edits):
        if abs(edit.value) > most:
            raise InvalidInput(
                f"edit value {format_setting(edit.value)}",
                why=f"the model computes in {lm.dtype}, whose largest number is {format_number(most)}",
            )
        layer, index = lm.layer(edit.layer), 0
        if edit.target == "coefficient":
            layer, index = lm.memory(edit.layer, edit.index)
        elif edit.target == "stream":
            _check_vector(lm, edit)
        elif edit.target == "feature":
            raise Unsupported(
                "an edit of a feature",
                why="features belong to a dictionary, not to the model itself",
                instead="Use lm.attach(...).edited(edits)",
            )
        elif edit.action != "scale":
            raise Unsupported(
                f"{edit.action} on a {edit.target}", why="its output is a vector, not a number", instead="Scale it"
            )
        elif edit.target == "head":
            index = lm.head(as_int("head", edit.index), layer)
        found.append(replace(edit, layer=layer, index=index))
    return tuple(found)


def _check_vector(lm: Decoder, edit: Edit) -> None:
    assert edit.vector is not None
    if len(edit.vector) != lm.d_model:
        raise InvalidInput(
            f"a vector of {len(edit.vector)} numbers", why=f"the stream of {lm.name} has {lm.d_model} channels"
        )
    block = lm.structure.blocks[edit.layer]
    if block.streams is not None or block.handover != 1.0:
        what = f"it has {block.streams.count} streams" if block.streams else "the stream is rescaled after this layer"
        raise Unsupported(f"an edit of the stream of {lm.name}", why=what, instead="Edit heads, memories or layers")
    if edit.action == "scale":
        raise Unsupported(
            "scale on the stream", why="a vector can be added to the stream or replace it", instead="Use add or set"
        )


@dataclass
class Rows:
    """The position of each column of the current batch in its own prompt, not counting padding."""

    real: Bool[Tensor, "batch pos"] | None = None
    """False at padding; None if there is no padding."""
    start: Tensor | None = None
    """The position of the first column in each row (negative in left padding); None means 0."""

    def mask(self, where: Where, shape: tuple[int, int], device: torch.device) -> Bool[Tensor, "batch pos"]:
        """Return which (row, column) of the current batch an edit at the positions `where` changes."""
        batch, pos = shape
        columns = torch.arange(pos, device=device).expand(batch, pos)
        real = torch.ones(shape, dtype=torch.bool, device=device) if self.real is None else self.real.to(device)
        if where == "all":
            return real
        last = torch.where(real, columns, -1).max(dim=1, keepdim=True).values
        if where == "last":
            return columns == last
        start = torch.zeros(batch, 1, dtype=torch.long, device=device) if self.start is None else self.start.to(device)
        positions = columns + start
        wanted = torch.zeros_like(real)
        for p in where:
            wanted |= positions == (p if p >= 0 else p + 1 + last + start)
        return wanted & real


def edited(t: Float[Tensor, "batch pos ..."], edits: Sequence[Edit], rows: Rows) -> Tensor:
    """Return a changed copy of a captured tensor, after edits that all apply to this tensor."""
    t = t.clone()
    for edit in edits:
        # An edit of attention, an FFN or the stream changes the whole tensor; an edit of a memory, feature or head
        # changes a view of one slice of it.
        part = t
        if edit.target in ("coefficient", "feature"):
            part = t.select(-1, as_int("memory", edit.index))
        elif edit.target == "head":
            part = t.select(-2, as_int("head", edit.index))
        new = edit.applied(part)
        # If the edit applies to all positions and nothing is padding, no mask is needed. Computing one at every step
        # would slow down generation.
        if edit.positions != "all" or rows.real is not None:
            where = rows.mask(edit.positions, (t.shape[0], t.shape[1]), t.device)
            new = torch.where(where.view(*where.shape, *[1] * (part.dim() - 2)), new, part)
        part.copy_(new)
    return t

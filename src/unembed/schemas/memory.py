"""One memory's value: what it promotes and suppresses, as plain values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unembed.schemas.numbers import numbers

if TYPE_CHECKING:
    from unembed.language_model import LanguageModel

SCHEMA = "unembed.memory/1"
"""Name of the JSON form; the number rises when a field changes its meaning or goes."""


@dataclass(frozen=True)
class Scored:
    """A token and its score under the value alone: the value times W_U, final norm left out."""

    id: int
    token: str
    score: float


@dataclass(frozen=True)
class MemoryView:
    """A memory as its value shows it."""

    schema: str
    provenance: dict[str, Any]
    layer: int
    index: int
    norm: float
    """The length of the value, in units of the stream."""
    promoted: list[Scored]
    suppressed: list[Scored]

    def to_dict(self) -> dict[str, Any]:
        """The view as JSON can hold it."""
        return dataclasses.asdict(self)


def memory_view(lm: LanguageModel, layer: int, index: int, top: int = 20, *, hide_unlearned: bool = True) -> MemoryView:
    """The tokens at both ends of a value, best first; scores are in the raw basis."""
    layer, index = lm.memory(layer, index)
    ends = [lm.values.top(layer, index, top, bottom=b, show_unlearned=not hide_unlearned) for b in (False, True)]
    provenance = lm.provenance(basis="raw", notes={"hide_unlearned": hide_unlearned})
    promoted, suppressed = (
        [Scored(*row) for row in zip(numbers(ids), lm.token_strings(ids), numbers(scores), strict=True)]
        for ids, scores in ends
    )
    return MemoryView(SCHEMA, provenance.to_dict(), layer, index, lm.values.norm(layer, index), promoted, suppressed)

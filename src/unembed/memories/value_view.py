"""The tokens that one memory's value vector promotes and suppresses, in types that JSON can represent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unembed.jacobian.basis import basis_or_default
from unembed.memories.values import Values
from unembed.models.decoder import Decoder
from unembed.models.named_tokens import Scored, scored
from unembed.results.lists import numbers

SCHEMA = "unembed.memory/1"
"""Name and version of the JSON format; the version rises when a field changes its meaning or is removed."""


@dataclass(frozen=True)
class MemoryView:
    """The tokens that the value vector of a memory (FFN neuron) promotes and suppresses."""

    schema: str
    provenance: dict[str, Any]
    layer: int
    index: int
    norm: float
    """The Euclidean norm of the value vector."""
    promoted: list[Scored]
    suppressed: list[Scored]
    edges: list[float]
    """Edges of the bins of a histogram of all tokens' scores; one more than there are bins."""
    counts: list[int]
    """Number of tokens in each bin."""


def memory_view(lm: Decoder, layer: int, index: int, top: int = 20, *, hide_unlearned: bool = True) -> MemoryView:
    """Return the tokens that a memory's value vector promotes most and suppresses most.

    The basis of the scores is "jacobian" where a lens is fitted, else "raw". Each list has `top` tokens.
    """
    (layer, index), values = lm.memory(layer, index), Values(lm)
    ends = [values.top(layer, index, top, bottom=b, show_unlearned=not hide_unlearned) for b in (False, True)]
    provenance = lm.provenance(basis=basis_or_default(lm, None, "raw"), notes={"hide_unlearned": hide_unlearned})
    promoted, suppressed = (scored(lm, *end) for end in ends)
    edges, counts = values.score_histogram(layer, index, show_unlearned=not hide_unlearned)
    norm = values.norm(layer, index)
    spread = numbers(edges), numbers(counts)
    return MemoryView(SCHEMA, provenance.to_dict(), layer, index, norm, promoted, suppressed, *spread)

"""Find when a prediction settles according to a lens: after which update it stays first, and what was first before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from unembed.models.named_tokens import Candidate
from unembed.names import StreamPoint
from unembed.trace.view import LayerView


@dataclass(frozen=True)
class Settling:
    """The update (or the embedding) that makes the target token first, where it then stays after every layer."""

    layer: int
    cause: Literal["ffn", "mixer", "embedding", "layer"]
    """What made the token first, as in `Event`; "layer" if the stream between mixer and FFN cannot be read."""
    probability_before: float
    probability_after: float
    displaced: Candidate | None
    """The token that was first before the update."""
    displaced_since: int | None
    """The layer after which `displaced` became first and stayed so up to this update; None if it was not first after
    the previous layer."""
    first_earlier: Sequence[range]
    """Ranges of earlier layers after which the target was first, before another token displaced it again."""
    first_ten: int | None
    """The layer after which the target entered the ten top tokens and stayed among them; None if it is this layer."""

    @property
    def before(self) -> StreamPoint:
        """The capture point of the stream before the update."""
        return "resid_mid" if self.cause == "ffn" else "resid_pre"


def settling(layers: Sequence[LayerView]) -> Settling | None:
    """Find when the target token settles; None if it is not first after the last layer.

    Source: Geva et al. 2022, section 5.1 (saturation).
    """
    if layers[-1].rank_after != 1:
        return None
    at = _since(layers, lambda one: one.rank_after == 1)
    one = layers[at]
    ten = _since(layers, lambda one: one.rank_after <= 10)
    first_ten = ten if ten < at else None
    earlier = ranges_of([layer for layer in range(at) if layers[layer].rank_after == 1])
    before, p = one.before[0], one.probability_before
    cause: Literal["ffn", "mixer", "embedding", "layer"] = "ffn"
    if one.middle is not None and one.rank_middle is not None and one.rank_middle > 1:
        before, p = one.middle[0], one.probability_middle or 0.0
        after = one.probability_after
    elif one.rank_before > 1:
        cause = "layer" if one.middle is None else "mixer"
        after = one.probability_after if one.probability_middle is None else one.probability_middle
    else:
        return Settling(at, "embedding", p, p, None, None, (), first_ten)
    held = _since(layers[:at], lambda one: one.after[0].id == before.id)
    return Settling(at, cause, p, after, before, held if held < at else None, earlier, first_ten)


def ranges_of(numbers: Sequence[int]) -> list[range]:
    """Return the runs of consecutive numbers in an ascending list."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n + 1 for n in numbers if n + 1 not in numbers]
    return [range(start, end) for start, end in zip(starts, ends, strict=True)]


def _since(layers: Sequence[LayerView], holds: Callable[[LayerView], bool]) -> int:
    """Return the layer from which a condition holds up to the last layer.

    If it does not hold in the last layer, return the number of layers.
    """
    first = len(layers)
    while first and holds(layers[first - 1]):
        first -= 1
    return first

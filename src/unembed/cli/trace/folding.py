"""Shorten a trace of many layers: consecutive layers in which the prediction does not change become one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from unembed.trace import LayerView

ALWAYS_SHOWN = 16
"""If a model has at most this number of layers, each layer has its own row."""
_FEWEST = 2
"""The smallest number of consecutive unchanged layers that become one row."""
_FAR = (1000, 300, 100)
"""Thresholds of rank: a token whose rank is larger is far from being predicted. The thresholds are tried in this order,
until the table has at most `_ROWS` rows."""
_ROWS = 14


@dataclass(frozen=True)
class Fold:
    """Consecutive layers in which the prediction does not change, shown as one row."""

    layers: tuple[LayerView, ...]
    kind: Literal["far", "same"]
    """"far": in all layers the target token's rank is larger than `beyond`. "same": in all layers the top token is the
    same, and the target's rank changes by less than a factor of 2."""
    beyond: int
    """The rank beyond which the target is far from being predicted."""

    @property
    def numbers(self) -> str:
        """The first and the last layer, such as 0–22."""
        return f"{self.layers[0].layer}–{self.layers[-1].layer}"


def folded(layers: Sequence[LayerView]) -> list[LayerView | Fold]:
    """Return the rows of the table of layers, in order. The last layer always has its own row."""
    if len(layers) <= ALWAYS_SHOWN:
        return list(layers)
    found: list[LayerView | Fold] = []
    for beyond in _FAR:
        found = _folded(layers, beyond)
        if len(found) <= _ROWS:
            break
    return found


def _folded(layers: Sequence[LayerView], beyond: int) -> list[LayerView | Fold]:
    found: list[LayerView | Fold] = []
    start = 0
    while start < len(layers):
        kind = _quiet(layers[start], beyond) if start < len(layers) - 1 else None
        end = start + 1
        while kind is not None and end < len(layers) - 1 and _quiet(layers[end], beyond) == kind:
            end += 1
        run = tuple(layers[start:end])
        if kind is None or len(run) < _FEWEST:
            found += run
        else:
            found.append(Fold(run, "far" if kind == "far" else "same", beyond))
        start = end
    return found


def _quiet(layer: LayerView, beyond: int) -> Literal["far"] | int | None:
    """Return why nothing changes in a layer: "far" if all ranks of the target exceed `beyond`, else the top token's id.

    Return None if the top token changes, or the target's rank changes by a factor of 2 or more.
    """
    ranks = [rank for rank in (layer.rank_before, layer.rank_middle, layer.rank_after) if rank is not None]
    if min(ranks) > beyond:
        return "far"
    firsts = {stream[0].id for stream in (layer.before, layer.middle, layer.after) if stream}
    moved = max(ranks) >= 2 * min(ranks)
    return None if moved or len(firsts) > 1 else firsts.pop()

"""Which layers of a long trace are shown: those where something happens; runs of quiet ones become one row each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from unembed.trace import LayerView

ALWAYS_SHOWN = 16
"""Layers up to which a trace shows each."""
_FEWEST = 2
"""A run of fewer quiet layers is shown."""
_FAR = (1000, 300, 100)
"""Ranks beyond which a token is far from being predicted; the first of them that leaves few rows is used."""
_ROWS = 14


@dataclass(frozen=True)
class Fold:
    """Quiet layers that follow one another."""

    layers: tuple[LayerView, ...]
    kind: Literal["far", "same"]
    """The target is beyond a rank in all; or the first token is the same, and the target's rank about the same."""
    beyond: int
    """That rank."""

    @property
    def numbers(self) -> str:
        """The layers, as 0–22."""
        return f"{self.layers[0].layer}–{self.layers[-1].layer}"


def folded(layers: Sequence[LayerView]) -> list[LayerView | Fold]:
    """The rows of a trace's layers, in order; the last layer is always a row of its own."""
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
    """Why nothing happens in a layer: the target is far, or this token stays first; None where something does."""
    ranks = [rank for rank in (layer.rank_before, layer.rank_middle, layer.rank_after) if rank is not None]
    if min(ranks) > beyond:
        return "far"
    firsts = {stream[0].id for stream in (layer.before, layer.middle, layer.after) if stream}
    moved = max(ranks) >= 2 * min(ranks)
    return None if moved or len(firsts) > 1 else firsts.pop()

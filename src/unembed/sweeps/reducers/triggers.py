"""The result of a sweep for triggers: the coefficients and positions of every key."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from unembed.errors import OutOfRange


@dataclass(frozen=True, eq=False)
class Triggers:
    """The top-t list of every key, best first; equal values by earlier position.

    Attributes:
        layers: which layers, in order; the other fields have one entry each.
        values: (key, t); -inf where a key has fewer triggers.
        positions: (key, t), positions in the token stream; -1 where a key has fewer triggers.
        negative_values: the most negative coefficients, lowest first, +inf where there are fewer; None unless a
            layer has both poles. A layer with one pole has infinite values only.
        negative_positions: their positions.
        tokens_seen: the number of positions counted.
    """

    layers: tuple[int, ...]
    values: tuple[Float[Tensor, "_ t"], ...]
    positions: tuple[Int[Tensor, "_ t"], ...]
    negative_values: tuple[Float[Tensor, "_ t"], ...] | None
    negative_positions: tuple[Int[Tensor, "_ t"], ...] | None
    tokens_seen: int

    def of(self, layer: int, index: int, pole: str = "positive") -> list[tuple[float, int]]:
        """Return the triggers of one key as (coefficient, position), best first.

        Raises:
            OutOfRange: the layer was not swept, or has no such key.
        """
        if layer not in self.layers:
            raise OutOfRange(f"layer {layer}", why=f"these triggers are of layers {list(self.layers)}")
        row = self.layers.index(layer)
        values, positions = self.values, self.positions
        if not 0 <= index < len(values[row]):
            raise OutOfRange(f"key {index} of layer {layer}", why=f"it has {len(values[row])}, counted from 0")
        if pole == "negative":
            if self.negative_values is None or self.negative_positions is None:
                return []
            values, positions = self.negative_values, self.negative_positions
        found = zip(values[row][index].tolist(), positions[row][index].tolist(), strict=True)
        return [(value, position) for value, position in found if position >= 0]

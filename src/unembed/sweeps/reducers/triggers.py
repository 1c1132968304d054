"""The triggers of every memory (FFN neuron): the positions of a corpus at which its coefficient is largest."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from unembed.errors import OutOfRange


@dataclass(frozen=True, eq=False)
class Triggers:
    """The triggers of every memory (FFN neuron), largest coefficient first; of equal ones, the earlier position first.

    A trigger is a token position at which the memory's coefficient is among its largest.

    Attributes:
        layers: the layers, in order; the other fields have one entry for each.
        values: coefficients (memory, t); -inf where a memory has fewer triggers.
        positions: positions in the corpus (memory, t), in tokens; -1 where a memory has fewer triggers.
        negative_values: the most negative coefficients, lowest first; +inf where there are fewer. None if no layer has
            negative coefficients; a single layer without them has only infinite values.
        negative_positions: the positions of `negative_values`.
        tokens_seen: the number of positions counted.
    """

    layers: tuple[int, ...]
    values: tuple[Float[Tensor, "_ t"], ...]
    positions: tuple[Int[Tensor, "_ t"], ...]
    negative_values: tuple[Float[Tensor, "_ t"], ...] | None
    negative_positions: tuple[Int[Tensor, "_ t"], ...] | None
    tokens_seen: int

    def of(self, layer: int, index: int, pole: str = "positive") -> list[tuple[float, int]]:
        """Return the triggers of one memory as pairs (coefficient, position), best first.

        Raises:
            OutOfRange: the layer was not searched, or has no such memory.
        """
        if layer not in self.layers:
            raise OutOfRange(f"layer {layer}", why=f"these triggers are of layers {list(self.layers)}")
        row = self.layers.index(layer)
        values, positions = self.values, self.positions
        if not 0 <= index < len(values[row]):
            raise OutOfRange(
                f"memory {index} of layer {layer}", why=f"the layer has {len(values[row])} memories, counted from 0"
            )
        if pole == "negative":
            if self.negative_values is None or self.negative_positions is None:
                return []
            values, positions = self.negative_values, self.negative_positions
        found = zip(values[row][index].tolist(), positions[row][index].tolist(), strict=True)
        return [(value, position) for value, position in found if position >= 0]

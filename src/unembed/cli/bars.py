"""Draw signed bars in the same way in every view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PROMOTES, OPPOSES = "blue", "dark_orange3"
"""Colours of positive and negative bars: distinct in every common form of colour blindness. The direction of a bar and
the sign of its number show the same without colour."""


@dataclass(frozen=True)
class Scale:
    """The scale of a column of bars: the largest absolute value, and the number of cells on each side of the axis.

    If no value is negative, all bars start at the left and use all cells.
    """

    largest: float
    cells: int
    is_signed: bool

    @classmethod
    def of(cls, values: Sequence[float], cells: int) -> Scale:
        """Return the scale on which the largest absolute value gets the longest bar.

        The longest bar fills all `cells`, or half of them if some values are negative.
        """
        is_signed = any(value < 0 for value in values)
        return cls(max((abs(value) for value in values), default=0.0), cells // 2 if is_signed else cells, is_signed)

    def left(self, value: float) -> str:
        """Return the part of a bar to the left of the axis."""
        if not self.is_signed:
            return ""
        whole, half = self._halves(value) if value < 0 else (0, 0)
        return ("▐" * half + "█" * whole).rjust(self.cells)

    def right(self, value: float) -> str:
        """Return the part of a bar to the right of the axis."""
        whole, half = self._halves(value) if value > 0 else (0, 0)
        return ("█" * whole + "▌" * half).ljust(self.cells)

    def _halves(self, value: float) -> tuple[int, int]:
        """Return the length of a bar as (whole cells, 0 or 1 half cells)."""
        return divmod(min(2 * self.cells, round(abs(value) / self.largest * 2 * self.cells)), 2)

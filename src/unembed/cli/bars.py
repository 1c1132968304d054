"""Draw signed bars and numbers in the same way in every view."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PROMOTES, OPPOSES = "blue", "dark_orange3"
"""Distinct in every common form of colour blindness; direction and sign show the same without colour."""


@dataclass(frozen=True)
class Scale:
    """The common scale of a column of bars: cells on both sides of an axis, or on one if nothing is negative."""

    largest: float
    cells: int
    is_signed: bool

    @classmethod
    def of(cls, values: Sequence[float], cells: int) -> Scale:
        """Return the scale on which the largest of the values fills its side of `cells` cells."""
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
        """Return whole cells and a half one; a value that rounds to zero draws nothing."""
        return divmod(min(2 * self.cells, round(abs(value) / self.largest * 2 * self.cells)), 2)


def percent(probability: float) -> str:
    """Format a probability in at most four cells: `34%`, `3.4%`, `<.1%`."""
    if probability < 0.001:
        return "<.1%"
    return f"{probability:.1%}" if probability < 0.0995 else f"{probability:.0%}"


def decimals(numbers: Iterable[float]) -> int:
    """Return the decimals of a column: two, or enough for two significant digits of its largest number (at most 8)."""
    largest = max((abs(number) for number in numbers), default=0.0)
    return min(8, max(2, 1 - math.floor(math.log10(largest)))) if 0 < largest < math.inf else 2


def signed(number: float, places: int | None = None) -> str:
    """Format a number with its sign and a number of decimals; None: as many as it needs alone (`decimals`)."""
    return f"{number:+.{decimals([number]) if places is None else places}f}".replace("-", "−")

"""Signed bars and numbers, drawn the same in every view."""

from __future__ import annotations

PROMOTES, OPPOSES = "blue", "dark_orange3"
"""Told apart in every common form of colour blindness; direction and sign say the same without colour."""


def signed_bar(value: float, largest: float, half_width: int) -> tuple[str, str]:
    """What stands left and right of the axis: `half_width` cells each, drawn in half cells.

    The bar of `largest` fills its side; a value other than zero that rounds to nothing draws nothing.
    """
    halves = 0 if largest <= 0 else min(2 * half_width, round(abs(value) / largest * 2 * half_width))
    whole, half = divmod(halves, 2)
    if value < 0:
        return ("▐" * half + "█" * whole).rjust(half_width), " " * half_width
    return " " * half_width, ("█" * whole + "▌" * half).ljust(half_width)


def percent(probability: float) -> str:
    """A probability in at most four cells: `34%`, `3.4%`, `<.1%`."""
    if probability < 0.001:
        return "<.1%"
    return f"{probability:.1%}" if probability < 0.0995 else f"{probability:.0%}"


def signed(number: float) -> str:
    """A number with its sign, in three significant places around one."""
    if number != 0 and abs(number) < 0.005:
        return f"{number:+.0e}".replace("e-0", "e-").replace("-", "−")
    return f"{number:+.2f}".replace("-", "−")

"""Format the numbers of a column with the same number of decimals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

SIGNIFICANT = 4
"""Number of significant digits of the largest number in a column."""


def column_format(values: Iterable[object]) -> Callable[[object], str]:
    """Return a function that formats the numbers of a column; a cell may also be a list of numbers.

    All floats get the same number of decimals: as many as give the largest one four significant digits, without
    trailing zeros that all of them share. A number that would be displayed as zero gets two significant digits instead.
    """
    floats = [value for value in _floats(values) if math.isfinite(value)]
    largest = max(map(abs, floats), default=0.0)
    places = max(0, SIGNIFICANT - 1 - math.floor(math.log10(largest))) if largest else 0
    if largest and not 1e-4 <= largest < 1e6:
        return lambda value: _written(value, f".{SIGNIFICANT}g")
    while places and all(f"{value:.{places}f}"[-1] == "0" for value in floats):
        places -= 1
    return lambda value: _written(value, f".{places}f")


def bytes_in_words(count: int | float) -> str:
    """Format a number of bytes with decimal units: 512 bytes, 3.4 MB, 12 GB."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.0f} GB" if count >= 10 else f"{count:.1f} GB"


def _written(value: object, form: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    text = format(value, form)
    if value and not text.strip("-0."):
        text = f"{value:.2g}"
    return text.replace("-", "−", 1) if value < 0 else text


def _floats(values: Iterable[object]) -> Iterator[float]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _floats(value)
        elif isinstance(value, float):
            yield value

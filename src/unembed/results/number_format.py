"""Write numbers for people: in columns, in titles and in sentences. All code that displays numbers uses this module.

A minus sign is "−", a percentage has a space before its sign, and a number that is not zero is not displayed as zero
where there is room.

| function | writes | as in |
|---|---|---|
| `format_number` | three significant digits, or a number of decimals | `12,300`, `0.0351`, `1.53e−09` |
| `format_signed` | the sign in any case; two decimals, more for small numbers | `+0.31`, `−4.78` |
| `format_percent` | a share, as a percentage | `12.3 %`, `0.0004 %` |
| `format_with_interval` | a measured number and its confidence interval | `12.1 % [11.0, 13.2]` |
| `format_spread` | a mean and its standard deviation, which has two significant digits | `86.3 ± 5.4` |
| `format_error` | a relative error, with one significant digit or more | `2e−07` |
| `format_setting` | a number that someone chose, with up to seven digits | `0.05` |
| `format_probability` | a probability in at most four characters | `34%`, `3.4%`, `<.1%` |
| `format_cell` | a number in a column of equal decimals, where a small one is zero | `0.31`, `0.00` |
| `bytes_in_words` | a number of bytes | `3.4 MB` |
| `column_format` | the numbers of a column, with equal decimals | |

Counts are whole and positive: `{n:,}` writes them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

SIGNIFICANT = 4
"""Number of significant digits of the largest number in a column."""
ROUNDING = 1e-6
"""Numbers smaller than this share of their column's largest number can be float32 rounding errors of zero."""
LEAST_PERCENT = 1e-6
"""Smaller percentages are written as `<0.000001 %`."""
NOT_A_NUMBER = "not a number"
"""How error messages write NaN; tables show it as a dash."""


def format_number(
    value: int | float | str | None,
    *,
    percent: bool = False,
    decimals: int | None = None,
    digits: int = 3,
    undefined: str = "–",
) -> str:
    """Format a number with three significant digits and thousands separators.

    Args:
        value: the number.
        percent: True to format a share as a percentage.
        decimals: the number of decimals, unless the number would then be displayed as zero.
        digits: the number of significant digits, if neither `percent` nor `decimals` is given.
        undefined: what None and NaN become.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return undefined
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if percent:
        shown = 100 * value
        if decimals is not None and round(shown, decimals) != 0:
            return _minus(f"{shown:,.{decimals}f} %")
        size = abs(shown)
        if 0 < size < LEAST_PERCENT:
            return f"<{LEAST_PERCENT:f} %" if shown > 0 else f">−{LEAST_PERCENT:f} %"
        places = 0 if shown == 0 or size >= 99.95 else 1 if size >= 1 else 2 if size >= 0.1 else -_exponent(size)
        return _minus(f"{shown:,.{places}f} %")
    if isinstance(value, int):
        return _minus(f"{value:,}")
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if decimals is not None and round(size, decimals) != 0:
        return _minus(f"{value:,.{decimals}f}")
    if size != 0 and (size < 1e-3 or size >= 1e7):
        return _minus(f"{value:.{digits - 1}e}")
    places = max(0, digits - 1 - math.floor(math.log10(size))) if size else 0
    shown = f"{value:,.{min(places, digits + 2)}f}"
    return _minus(shown.rstrip("0").rstrip(".") if "." in shown else shown)


def format_signed(value: int | float, decimals: int | None = None) -> str:
    """Format a number with its sign and thousands separators.

    Without `decimals`, the number of decimals is that of `decimals_of([value])`. A number that would then be shown as
    zero is written as `+1.2e−10`.
    """
    places = decimals_of([value]) if decimals is None else decimals
    if decimals is None and value and round(value, places) == 0:
        return _minus(f"{value:+.1e}")
    return _minus(f"{value or 0.0:+,.{places}f}")


def format_percent(share: int | float, decimals: int | None = None, *, signed: bool = False) -> str:
    """Format a share as a percentage: `12.3 %`; with `decimals=0`, `12 %`; if `signed`, `+12.3 %`."""
    return ("+" if signed and share > 0 else "") + format_number(float(share), percent=True, decimals=decimals)


def format_with_interval(
    value: float, low: float, high: float, *, percent: bool = False, decimals: int | None = None
) -> str:
    """Format a measured number with its interval: `12.1 [11.0, 13.2]` or `12.1 % [11.0, 13.2]`; "undefined" for NaN.

    If `decimals` is given, percentages have exactly that many: `5 % [0, 12]` for 0.
    """
    if math.isnan(value):
        return "undefined"
    if percent and decimals is not None:
        shown, *ends = (format_cell(100 * float(one), decimals) for one in (value, low, high))
        return f"{shown} % [{', '.join(ends)}]"
    if decimals is None and not percent:
        decimals = common_decimals([value, low, high])
    shown, *ends = (format_number(float(one), percent=percent, decimals=decimals) for one in (value, low, high))
    return f"{shown} [{', '.join(end.removesuffix(' %') for end in ends)}]"


def format_spread(mean: float, deviation: float) -> str:
    """Format a mean and its standard deviation: `86.3 ± 5.4`. The deviation has two significant digits."""
    decimals = None if not 0 < deviation < math.inf else max(0, 1 - math.floor(math.log10(deviation)))
    return " ± ".join(format_number(float(one), decimals=decimals) for one in (mean, deviation))


def format_error(size: float, digits: int = 1) -> str:
    """Format a relative error with one significant digit, `2e−07`, or with more: `1.6e−07`."""
    if not math.isfinite(size):
        return format_number(size, undefined=NOT_A_NUMBER)
    return _minus(f"{size:.{digits - 1}e}") if size else "0"


def format_setting(value: int | float) -> str:
    """Format a number that someone chose, such as a threshold, with up to seven significant digits: `0.05`, `1e−05`.

    More digits would show the rounding of float32, in which 0.1 is 0.100000001.
    """
    return _minus(f"{value:.7g}")


def format_probability(probability: float, decimals: int | None = None) -> str:
    """Format a probability in at most four characters: `34%`, `3.4%`, `<.1%`; or with the given number of decimals."""
    if probability < 0.001:
        return "<.1%"
    return f"{probability:.{(1 if probability < 0.0995 else 0) if decimals is None else decimals}%}"


def format_cell(value: int | float, decimals: int = 2) -> str:
    """Format a number of a column with a fixed number of decimals, so that a small one is `0.00`."""
    return _minus(f"{value:z.{decimals}f}") if math.isfinite(value) else format_number(value)


def bytes_in_words(count: int | float) -> str:
    """Format a number of bytes with decimal units: 512 bytes, 3.4 MB, 12 GB."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.0f} GB" if count >= 10 else f"{count:.1f} GB"


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


def common_decimals(values: Iterable[Any], *, percent: bool = False) -> int | None:
    """Return the number of decimals for a column of numbers, at most four.

    The largest number gets at least three significant digits and the median two. Percentages get 1 decimal, more if the
    median needs it, or 0 if all are whole. Zeros are ignored, and so are numbers that may be rounding errors of zero,
    so that a column looks the same on every machine. The result is None if there are no floats, or if all are tiny or
    huge: each number is then formatted by itself.
    """
    sizes = sorted(abs(v) * (100 if percent else 1) for v in values if isinstance(v, float) and math.isfinite(v) and v)
    if not sizes or sizes[-1] < 1e-3 or sizes[-1] >= 1e7:
        return None
    sizes = [size for size in sizes if size >= ROUNDING * sizes[-1]]
    if percent and all(size == round(size) for size in sizes):
        return 0
    largest, median = (math.floor(math.log10(size)) for size in (sizes[-1], sizes[(len(sizes) - 1) // 2]))
    found = max(1, -median) if percent else max(2 - largest, 1 - median, 0)
    return min(found, 4)


def decimals_of(numbers: Iterable[float]) -> int:
    """Return the number of decimals for signed numbers: 2, or up to 8 if the largest needs more for two digits."""
    largest = max((abs(number) for number in numbers), default=0.0)
    return min(8, max(2, 1 - math.floor(math.log10(largest)))) if 0 < largest < math.inf else 2


def as_written(text: str) -> str:
    """Rewrite numbers in a text as in tables: with typographic minus signs, and a space before "%"."""
    text = re.sub(r"(?<![\w\]).−-])-(?=[\d.]*\d)|(?<=\de)-(?=\d)", "−", text)
    return re.sub(r"(\d)%", r"\1 %", re.sub(r"[−+](0(?:\.0+)?)(?!\.?\d)", r"\1", text))


def _exponent(size: float) -> int:
    """Return the exponent of ten of a number that is rounded to one significant digit."""
    return int(f"{size:.0e}".partition("e")[2])


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _written(value: object, form: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    text = format(value, form)
    if value and not text.strip("-0."):
        text = f"{value:.2g}"
    return _minus(text)


def _floats(values: Iterable[object]) -> Iterator[float]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _floats(value)
        elif isinstance(value, float):
            yield value

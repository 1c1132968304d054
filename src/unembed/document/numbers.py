"""Format numbers for reports: three significant digits, a typographic minus sign, percentages, intervals."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from unembed.document.intervals import Measured


def format_number(value: int | float | str | None, *, percent: bool = False, decimals: int | None = None) -> str:
    """Format a number with three significant digits and thousands separators.

    Args:
        value: the number; None and NaN become a dash.
        percent: True to format a share as a percentage.
        decimals: the number of decimals, unless the number would then be displayed as zero.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if percent:
        shown = 100 * value
        if decimals is not None and round(shown, decimals) != 0:
            return f"{shown:.{decimals}f} %".replace("-", "−")
        digits = 0 if shown == 0 or abs(shown) >= 99.95 else 1 if abs(shown) >= 1 else 2 if abs(shown) >= 0.1 else 4
        return f"{shown:.{digits}f} %".replace("-", "−")
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if decimals is not None and round(size, decimals) != 0:
        return f"{value:,.{decimals}f}".replace("-", "−")
    if size != 0 and (size < 1e-3 or size >= 1e7):
        return f"{value:.2e}".replace("-", "−")
    digits = max(0, 2 - math.floor(math.log10(size))) if size else 0
    shown = f"{value:,.{min(digits, 5)}f}"
    return (shown.rstrip("0").rstrip(".") if "." in shown else shown).replace("-", "−")


def common_decimals(values: Iterable[Any], *, percent: bool = False) -> int | None:
    """Return the number of decimals for a column of numbers, at most four.

    The largest number gets at least three significant digits and the median two. Percentages get 1 decimal, more if the
    median needs it, or 0 if all are whole. None if there are no floats, or all are tiny or huge: then each number is
    formatted by itself.
    """
    sizes = sorted(abs(v) * (100 if percent else 1) for v in values if isinstance(v, float) and math.isfinite(v) and v)
    if not sizes or sizes[-1] < 1e-3 or sizes[-1] >= 1e7:
        return None
    if percent and all(size == round(size) for size in sizes):
        return 0
    largest, median = (math.floor(math.log10(size)) for size in (sizes[-1], sizes[(len(sizes) - 1) // 2]))
    found = max(1, -median) if percent else max(2 - largest, 1 - median, 0)
    return min(found, 4)


def as_written(text: str) -> str:
    """Rewrite numbers in a text as in tables: with typographic minus signs, and a space before "%"."""
    text = re.sub(r"(?<![\w\]).−-])-(?=[\d.]*\d)|(?<=\de)-(?=\d)", "−", text)
    return re.sub(r"(\d)%", r"\1 %", re.sub(r"[−+](0(?:\.0+)?)(?!\.?\d)", r"\1", text))


def format_percent(share: float) -> str:
    """Format a share as a percentage."""
    return format_number(float(share), percent=True)


def format_interval(measured: Measured, *, percent: bool = False) -> str:
    """Format a measured number with its interval: `12.1 [11.0, 13.2]` or `12.1 % [11.0, 13.2]`; "undefined" for NaN."""
    ends = [float(measured.value), float(measured.low), float(measured.high)]
    if math.isnan(measured.value):
        return "undefined"
    decimals = None if percent else common_decimals(ends)
    value, low, high = (format_number(end, percent=percent, decimals=decimals) for end in ends)
    return f"{value} [{low.removesuffix(' %')}, {high.removesuffix(' %')}]"


def percent(measured: Measured) -> str:
    """Format a measured share as a percentage with its interval: `12.1 % [11.0, 13.2]`."""
    return format_interval(measured, percent=True)


def points(measured: Measured) -> str:
    """Format a measured difference of shares in percentage points with its interval: `2.1 points [1.0, 3.2]`."""
    return percent(measured).replace(" %", " points", 1)


def signed(measured: Measured) -> str:
    """Format a measured number with its sign, its interval and two decimals: `+0.12 [+0.10, +0.14]`."""
    if math.isnan(measured.value):
        return "undefined"
    return f"{measured.value:+.2f} [{measured.low:+.2f}, {measured.high:+.2f}]".replace("-", "−")

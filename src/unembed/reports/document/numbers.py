"""Numbers as a reader sees them: three digits, one minus sign, shares in percent, intervals in brackets."""

from __future__ import annotations

import math
import re

from unembed.reports.document.intervals import Measured


def format_number(value: int | float | str | None, *, percent: bool = False) -> str:
    """A number for a reader: three digits, thousands separated, per cent on request."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if percent:
        shown = 100 * value
        digits = 0 if shown == 0 or abs(shown) >= 99.95 else 1 if abs(shown) >= 1 else 2 if abs(shown) >= 0.1 else 4
        return f"{shown:.{digits}f} %".replace("-", "−")
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size != 0 and (size < 1e-3 or size >= 1e7):
        return f"{value:.2e}".replace("-", "−")
    digits = max(0, 2 - math.floor(math.log10(size))) if size else 0
    shown = f"{value:,.{min(digits, 5)}f}"
    return (shown.rstrip("0").rstrip(".") if "." in shown else shown).replace("-", "−")


def as_written(text: str) -> str:
    """Text with one minus sign before numbers and one way to write percent, as numbers in tables are written."""
    text = re.sub(r"(?<![\w\]).−-])-(?=[\d.]*\d)|(?<=\de)-(?=\d)", "−", text)
    return re.sub(r"(\d)%", r"\1 %", re.sub(r"[−+](0(?:\.0+)?)(?!\.?\d)", r"\1", text))


def format_percent(share: float) -> str:
    """A share in percent."""
    return format_number(float(share), percent=True)


def format_interval(measured: Measured, *, percent: bool = False) -> str:
    """A measured number with its interval: `12.1 [11.0, 13.2]`, or `12.1 % [11.0, 13.2]`."""
    low, high = (format_number(float(e), percent=percent).removesuffix(" %") for e in (measured.low, measured.high))
    return f"{format_number(float(measured.value), percent=percent)} [{low}, {high}]"


def percent(measured: Measured) -> str:
    """A measured share in percent with its interval: `12.1 % [11.0, 13.2]`."""
    return format_interval(measured, percent=True)


def points(measured: Measured) -> str:
    """A measured difference of shares in percentage points with its interval: `2.1 points [1.0, 3.2]`."""
    return percent(measured).replace(" %", " points", 1)


def signed(measured: Measured) -> str:
    """A measured number with its sign and its interval, two decimals: `+0.12 [+0.10, +0.14]`."""
    return f"{measured.value:+.2f} [{measured.low:+.2f}, {measured.high:+.2f}]".replace("-", "−")

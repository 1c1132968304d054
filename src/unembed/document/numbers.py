"""Format measured numbers with their intervals, as `unembed.results.number_format` writes numbers."""

from __future__ import annotations

import math

from unembed.document.intervals import Measured
from unembed.results import format_signed, format_with_interval


def format_interval(measured: Measured, *, percent: bool = False) -> str:
    """Format a measured number with its interval: `12.1 [11.0, 13.2]` or `12.1 % [11.0, 13.2]`; "undefined" for NaN."""
    return format_with_interval(float(measured.value), float(measured.low), float(measured.high), percent=percent)


def percent(measured: Measured) -> str:
    """Format a measured share as a percentage with its interval: `12.1 % [11.0, 13.2]`."""
    return format_interval(measured, percent=True)


def points(measured: Measured) -> str:
    """Format a measured difference of shares in percentage points with its interval: `2.1 points [1.0, 3.2]`."""
    return percent(measured).replace(" %", " points", 1)


def signed(measured: Measured) -> str:
    """Format a measured number with its sign, its interval and two decimals: `+0.12 [+0.10, +0.14]`."""
    if math.isnan(float(measured.value)):
        return "undefined"
    value, low, high = (format_signed(float(end), 2) for end in (measured.value, measured.low, measured.high))
    return f"{value} [{low}, {high}]"

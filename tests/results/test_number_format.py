"""Numbers are written in one way: equal decimals in a column, one minus sign, and none that is not zero as zero."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

import unembed
from unembed.results.number_format import (
    NOT_A_NUMBER,
    column_format,
    common_decimals,
    format_cell,
    format_error,
    format_number,
    format_percent,
    format_probability,
    format_setting,
    format_signed,
    format_spread,
    format_with_interval,
)

PACKAGE = Path(unembed.__file__).parent
READ_BY_MACHINES = {
    "results/number_format.py": "the formatter",
    "document/svg.py": "coordinates of a drawing",
    "document/charts.py": "the strength of a colour",
    "cli/trace/html.py": "the strength of a colour",
    "cli/trace/html_parts.py": "the length of a bar",
    "circuit_graph/viewer_graph.py": "other viewers read the probability from a label",
}


@pytest.mark.parametrize(
    ("column", "written"),
    [
        ([1.628, -0.01454, 0.7557], ["1.628", "−0.015", "0.756"]),
        ([0.13, 0.1223, 0.3645], ["0.1300", "0.1223", "0.3645"]),
        ([1.0, 1.0, 8.798e-06], ["1", "1", "8.8e−06"]),
        ([0.5, 0.25], ["0.50", "0.25"]),
        ([139.1, -0.02], ["139.1", "−0.02"]),
        ([2.0, 4.0, None], ["2", "4", ""]),
        ([3e-9, 1.25e-7], ["3e−09", "1.25e−07"]),
        ([3, -2, True, 0.0], ["3", "-2", "True", "0"]),
        ([float("nan"), float("inf"), 0.5], ["nan", "inf", "0.5"]),
        ([], []),
    ],
)
def test_the_numbers_of_a_column_have_equal_decimals(column: list[object], written: list[str]) -> None:
    assert list(map(column_format(column), column)) == written


def test_a_rounding_error_of_zero_does_not_change_how_a_column_looks() -> None:
    shares = [1.0, 0.757, -0.065, -0.0003]
    assert common_decimals([*shares, *[-4.4e-8] * 9]) == common_decimals([*shares, *[0.0] * 9]) == 3
    assert common_decimals([*shares, *[-4.4e-5] * 9]) == 4


def test_numbers_in_lists_count_for_their_column() -> None:
    assert column_format([[0.25, 12.5], [3.125]])(12.5) == "12.50"


@pytest.mark.parametrize(
    ("made", "written"),
    [
        (format_signed(-4.7834), "−4.78"),
        (format_signed(0.00345), "+0.0034"),
        (format_signed(0.5, 3), "+0.500"),
        (format_percent(0.123), "12.3 %"),
        (format_percent(0.123, 0), "12 %"),
        (format_percent(-0.02, signed=True), "−2.0 %"),
        (format_percent(0.02, signed=True), "+2.0 %"),
        (format_percent(0.0004, 0), "0.04 %"),
        (format_percent(4e-6), "0.0004 %"),
        (format_percent(0.000096), "0.01 %"),
        (format_percent(1e-8), "0.000001 %"),
        (format_percent(-1e-12), ">−0.000001 %"),
        (format_percent(0.0), "0 %"),
        (format_with_interval(0.05, 0.00004, 0.12, percent=True, decimals=0), "5 % [0, 12]"),
        (format_number(12.3456789), "12.3"),
        (format_number(12.3456789, digits=6), "12.3457"),
        (format_number(12.3431, digits=6), "12.3431"),
        (format_number(1.234567e-9, digits=6), "1.23457e−09"),
        (format_number(math.nan), "–"),
        (format_number(math.nan, digits=6, undefined=NOT_A_NUMBER), "not a number"),
        (format_error(1.04e-4, 2), "1.0e−04"),
        (format_error(1.6e-4, 2), "1.6e−04"),
        (format_error(math.nan, 2), "not a number"),
        (format_error(math.inf), "∞"),
        (format_signed(0.0), "+0.00"),
        (format_signed(-0.0, 1), "+0.0"),
        (format_signed(-1.23e-10), "−1.2e−10"),
        (format_signed(12345.678), "+12,345.68"),
        (format_cell(0.0004), "0.00"),
        (format_cell(-0.0004), "0.00"),
        (format_cell(-0.31, 1), "−0.3"),
        (format_cell(0.0, 3), "0.000"),
        (format_cell(math.nan), "–"),
        (format_setting(1234567.0), "1234567"),
        (format_setting(0.1234567), "0.1234567"),
        (format_setting(0.10000000149011612), "0.1"),
        (format_with_interval(0.5, 0.25, 0.75, percent=True, decimals=0), "50 % [25, 75]"),
        (format_spread(86.3, 5.37), "86.3 ± 5.4"),
        (format_spread(82.04, 10.3), "82 ± 10"),
        (format_spread(100.0, 0.0), "100 ± 0"),
        (format_spread(-0.0123, 0.000456), "−0.01230 ± 0.00046"),
        (format_error(1.6e-7), "2e−07"),
        (format_error(0.0), "0"),
        (format_setting(1e-5), "1e−05"),
        (format_setting(20.0), "20"),
        (format_probability(0.034), "3.4%"),
        (format_probability(0.00002), "<.1%"),
    ],
)
def test_each_kind_of_number_is_written_in_one_way(made: str, written: str) -> None:
    assert made == written


def test_only_the_formatter_formats_numbers_that_people_see() -> None:
    """Other modules use it: a format such as `{x:.3f}` writes another minus sign, and small numbers as zero."""
    found = {str(path.relative_to(PACKAGE)): list(_formats(path.read_text())) for path in PACKAGE.rglob("*.py")}
    of_their_own = {name for name, formats in found.items() if formats}
    assert {name: found[name] for name in of_their_own - set(READ_BY_MACHINES)} == {}
    assert set(READ_BY_MACHINES) <= of_their_own, "these have no format of their own any more"


def test_formats_of_numbers_are_found() -> None:
    source = """a = f"{x:.2f} {y:+} {z:6.1%} {v:.{n}f}"; b = format(x, "g"); c = "%.3f" % x; d = "{:e}".format(x)"""
    assert sorted(_formats(source)) == sorted([".2f", "+", "6.1%", ".{n}f", "g", "%.3f", "{:e}"])
    assert list(_formats("""f"{n:,} {t:>7} {m:02} {c:04X} {v!r:.60}"; float(f"{x:.3g}")""")) == []


def _formats(source: str) -> Iterator[str]:
    """The formats of fractions or signs in a source, but of numbers that `float` reads again at once."""
    tree = ast.parse(source)
    reread = {
        id(node)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "float"
        for node in ast.walk(call)
    }
    for node in ast.walk(tree):
        form = None
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None and id(node) not in reread:
            form = ast.unparse(node.format_spec)[2:-1]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "format":
            form = str(getattr(node.args[1], "value", "g"))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
            form = str(getattr(node.func.value, "value", ""))
            form = form if any(form.endswith(f"{kind}}}") and ":" in form for kind in "eEfFgG%") else None
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
            form = node.left.value if isinstance(node.left.value, str) else None
        if form and (form[-1] in "eEfFgG%" or "+" in form or form.startswith(("%", "{:"))):
            yield form

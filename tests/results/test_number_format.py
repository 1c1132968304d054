"""Numbers of a column have equal decimals, and none that is not zero is written as zero."""

from __future__ import annotations

import pytest

from unembed.results.number_format import column_format


@pytest.mark.parametrize(
    ("column", "written"),
    [
        ([1.628, -0.01454, 0.7557], ["1.628", "−0.015", "0.756"]),
        ([0.13, 0.1223, 0.3645], ["0.1300", "0.1223", "0.3645"]),
        ([1.0, 1.0, 8.798e-06], ["1", "1", "8.8e-06"]),
        ([0.5, 0.25], ["0.50", "0.25"]),
        ([139.1, -0.02], ["139.1", "−0.02"]),
        ([2.0, 4.0, None], ["2", "4", ""]),
        ([3e-9, 1.25e-7], ["3e-09", "1.25e-07"]),
        ([3, -2, True, 0.0], ["3", "-2", "True", "0"]),
        ([float("nan"), float("inf"), 0.5], ["nan", "inf", "0.5"]),
        ([], []),
    ],
)
def test_the_numbers_of_a_column_have_equal_decimals(column: list[object], written: list[str]) -> None:
    assert list(map(column_format(column), column)) == written


def test_numbers_in_lists_count_for_their_column() -> None:
    assert column_format([[0.25, 12.5], [3.125]])(12.5) == "12.50"

"""A fast part of the golden outputs, and that their comparison can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import run
from tests.golden.case import Case
from tests.golden.comparison import difference, indented, normalised

FAST = (
    r"^(cli/gated/(trace/layer|explain|patch|value|circuits/look|index/triggers)|cli/wrong/(trace|index|circuits) .*"
    r"|api/gated/(GET memories/1/5|POST patching 22|written))$"
)


def test_a_part_of_the_outputs_is_as_expected() -> None:
    assert list(run.compare(FAST)) == []


def test_every_group_of_cases_is_saved_and_every_saved_case_exists() -> None:
    saved, cases = set(run.expected()), {case.name for case in run.chosen()}
    assert saved == cases and len(cases) > 500


def test_another_number_word_output_or_case_is_a_difference() -> None:
    name = "cli/gated/value"
    outputs = dict(run.expected()[name])
    changed = {
        "a number": {**outputs, "csv": outputs["csv"].replace("0.", "0.1", 1)},
        "a word": {**outputs, "text": outputs["text"].replace("L1M5", "L1M6", 1)},
        "no page": {form: text for form, text in outputs.items() if form != "html"},
    }
    assert all(made != outputs for made in changed.values())
    for made in changed.values():
        (found,) = run.compare(cases=[Case(name, lambda place, made=made: made)])
        assert name in found
    assert list(run.compare(cases=[Case(name, lambda place: outputs)])) == []
    assert list(run.compare(cases=[Case("cli/other", lambda place: {})])) == ["new case: cli/other"]


def test_a_case_that_raises_is_a_difference() -> None:
    def broken(place: object) -> dict[str, str]:
        raise ZeroDivisionError("nothing to divide")

    found = list(run.compare(cases=[Case("cli/models", broken)]))
    assert "cli/models: raised is new" in found


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        ('"score": 0.12345', '"score": 0.123455', True),
        ('"score": 0.12345', '"score": 0.1236', False),
        ('"error": 2.1e-07', '"error": 3.4e-07', True),
        ("−1.50 ·January", "-1.50 ·January", False),
        ("1,024 memories", "1,025 memories", False),
        ("L1M5 12.0001", "L1M5 12.0002", True),
        ("L1M5", "L1M6", False),
        ("a\nb 1.0\nc", "a\nb 1.00001\nc", True),
    ],
)
def test_numbers_may_differ_by_the_tolerance_and_words_not_at_all(expected: str, found: str, same: bool) -> None:
    assert (difference("case", expected, found) == "") == same


def test_a_line_added_is_shown_alone() -> None:
    before, after = "first 1.0\nsecond 2.0\nthird 3.0", "first 1.00001\nnew\nsecond 2.00001\nthird 3.00001"
    changed = [line for line in difference("case", before, after).splitlines()[2:] if line[0] in "+-"]
    assert changed == ["+new"]


def test_what_differs_from_run_to_run_is_replaced(tmp_path: Path) -> None:
    text = f'{tmp_path}/a "seconds": 0.123, made 2026-01-02T03:04:05.678+00:00, in 2.5 s, 0.123456789'
    assert normalised(text, tmp_path) == ('<folder>/a "seconds": <measured>, made <date>, in <seconds>, 0.1234568')


def test_json_has_a_value_a_line() -> None:
    assert indented({"a": [1, 2], "b": {"c": "d"}}) == '{\n "a": [1, 2],\n "b": {\n  "c": "d"\n }\n}'

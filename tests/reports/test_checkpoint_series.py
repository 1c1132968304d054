"""When findings begin to hold over the checkpoints of a training, and how numbers change."""

from __future__ import annotations

from itertools import product

import pytest

from tests.reports.test_comparison import made
from unembed.document.html import page
from unembed.errors import InvalidInput
from unembed.reports.checkpoint_series import DATES, Onset, onset, series_report


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_every_series_of_verdicts_agrees_with_the_definition(length: int) -> None:
    for verdicts in product((True, False, None), repeat=length):
        starts = [i for i in range(length) if all(verdicts[i:])]
        misses = [i for i in range(length) if verdicts[i] is False]
        expected = Onset(misses[-1] * 10 if misses else None, starts[0] * 10 if starts else None)
        backwards = {i * 10: verdicts[i] for i in reversed(range(length))}
        assert onset(backwards) == expected


def _series():
    return {
        "step300": made("c", "agrees", 0.9),
        "step20": made("b", "differs", 0.3),
        "step100": made("b", "inconclusive", 0.5),
        "step1000": made("d", "agrees", 0.9),
    }


def test_a_training_dates_its_findings_and_draws_its_numbers() -> None:
    found = series_report(_series())
    (row,) = found[DATES].rows()
    assert row == {"claim_text": "Keys capture patterns.", "steps_after": 20, "steps_at_most": 300}
    rows = list(found["keys"].rows())
    assert [row["steps"] for row in rows] == [20, 100, 300, 1000]
    assert [row["keys with a pattern"] for row in rows] == [0.3, 0.5, 0.9, 0.9]
    assert rows[0]["keys with a pattern_high"] == pytest.approx(0.4)
    assert rows[0]["keys with a pattern_published"] == 0.99
    (figure,) = found.sections[1].figures
    assert (figure.x, figure.y, figure.table) == ("steps", ("keys with a pattern",), "keys")
    assert [(row["steps"], row["here_text"]) for row in found["findings_0"].rows()][:2] == [
        (20, "0.3 here."), (100, "0.5 here."),
    ]  # fmt: skip
    html = page(found)
    assert "When findings begin to hold" in html and "steps of training" in html


def test_dates_are_in_tokens_where_a_step_has_a_stated_number_of_them() -> None:
    (row,) = series_report(_series(), tokens_per_step=2_097_152)[DATES].rows()
    assert (row["tokens_after"], row["tokens_at_most"]) == (20 * 2_097_152, 300 * 2_097_152)


def test_a_finding_that_random_weights_give_has_no_date() -> None:
    # Only the last checkpoint is compared with random weights; what they show holds for all.
    reports = {
        "step1": made("a", "agrees", 0.9),
        "step2": made("a", "agrees", 0.9, informative=False),
    }
    (row,) = series_report(reports)[DATES].rows()
    assert row["steps_at_most"] is None


def test_reports_of_unnumbered_models_are_refused() -> None:
    with pytest.raises(InvalidInput, match="does not end with a number"):
        series_report({"a": made("a", "agrees", 0.9), "b": made("b", "differs", 0.3)})

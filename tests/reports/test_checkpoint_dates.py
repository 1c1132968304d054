"""When findings begin to hold over the checkpoints of a training."""

from __future__ import annotations

from itertools import product

import pytest

from tests.reports.test_comparison import made
from unembed.document.html import page
from unembed.reports.checkpoint_dates import ONSETS, Onset, counts, onset
from unembed.reports.comparison import compared


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_every_series_of_verdicts_agrees_with_the_definition(length: int) -> None:
    for series in product((True, False, None), repeat=length):
        starts = [i for i in range(length) if all(series[i:])]
        misses = [i for i in range(length) if series[i] is False]
        expected = Onset(misses[-1] * 10 if misses else None, starts[0] * 10 if starts else None)
        backwards = {i * 10: series[i] for i in reversed(range(length))}
        assert onset(backwards) == expected


def test_counts_are_read_from_the_ends_of_names() -> None:
    assert counts(["run/step1000", "run/step20"]) == ("steps", [1000, 20])
    assert counts(["tokens-100", "tokens-7/"]) == ("tokens", [100, 7])
    for names in (["step1", "step01"], ["step1", "tokens2"], ["step1", "wren"], ["footstep1", "footstep2"]):
        assert counts(names) is None


def test_a_comparison_of_checkpoints_dates_its_findings() -> None:
    reports = {
        "run/step300": made("c", "agrees", 0.9),
        "run/step20": made("b", "differs", 0.3),
        "run/step100": made("b", "inconclusive", 0.5),
        "run/step1000": made("d", "agrees", 0.9),
    }
    found = compared(reports)
    (row,) = found[ONSETS].rows()
    assert row == {"claim_text": "Keys capture patterns.", "steps_after": 20, "steps_at_most": 300}
    assert "When findings begin to hold" in page(found)


def test_a_finding_that_random_weights_give_has_no_date() -> None:
    reports = {f"step{n}": made("a", "agrees", 0.9, informative=False) for n in (1, 2)}
    (row,) = compared(reports)[ONSETS].rows()
    assert row["steps_at_most"] is None


def test_other_models_have_no_dates() -> None:
    assert ONSETS not in compared({"a": made("a", "agrees", 0.9), "b": made("b", "differs", 0.3)}).exhibits

"""The page on findings over training, from a series of made-up reports."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.reports.test_checkpoint_series import _series
from tests.sweeps.recorder import lettered, texts
from tools.over_training import PERIOD, fall_per_doubling, numbers, page, second_copies
from tools.training.checkpoint_series import RECIPES

from tools import over_training
from unembed.document.intervals import Measured
from unembed.reports.checkpoint_series import series_report


def test_the_page_has_dates_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    made = series_report(_series(), tokens_per_step=10)
    monkeypatch.setattr(over_training, "SHOWN", {made.name: ("keys with a pattern", "absent")})
    lines = page([made]).splitlines()
    assert "| Keys capture patterns. | 200 | 3,000 |" in lines
    assert "| tokens | keys with a pattern |" in lines
    assert [line.split(" |")[0] for line in lines if line.startswith("| ") and " % \\[" in line] == [
        "| 200", "| 1,000", "| 3,000", "| 10,000",
    ]  # fmt: skip


def test_second_copies_are_predicted_from_the_first_alone_by_an_induction_model() -> None:
    """Against one run for each passage, in float64."""
    lm = lettered("gpt2", torch.float64)
    text = " ".join(texts(20))
    found, ids = second_copies(lm, text, passages=3, width=8), lm.encode(text)[0]
    losses = []
    for start in (0, 8, 16):
        once = ids[start : start + 8].tolist()
        log_p = lm.run(torch.tensor([once + once])).logits[0].log_softmax(-1)
        losses.append(np.mean([-float(log_p[8 + i, once[i + 1]]) for i in range(7)]))
    assert found.n == 3 and found.value == pytest.approx(np.mean(losses), rel=1e-5)


def test_the_steepest_fall_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_training, "SHOWN", {"geva2021": ("keys with a pattern",)})
    found = [Measured(loss, loss - 1, loss + 1, 9) for loss in (7.0, 6.5, 2.0, 1.0)]
    *table, sentence = numbers(series_report(_series(), tokens_per_step=10), "tokens", found)
    assert [line.split(" | ")[-1] for line in table[2:]] == ["– |", "0.215 |", "2.84 |", "0.576 |"]
    assert "fastest between 1,000 and 3,000 tokens: by 2.84 nats per doubling" in sentence


def test_no_row_of_the_training_repeats_at_the_distance_of_the_test() -> None:
    recipe = RECIPES["attn-2l"]
    assert min(64, recipe.shape.context // 2 - 2) == PERIOD, "what the report of Elhage et al. repeats"
    for phase in recipe.phases:
        shortest, longest = phase.periods
        assert all(PERIOD % period for period in range(shortest, longest + 1))


def test_a_fall_is_for_each_doubling_of_the_text() -> None:
    assert fall_per_doubling([1, 2, 8, 9], [5.0, 4.0, 3.0, 3.0]) == [None, 1.0, 0.5, 0.0]


def test_missing_files_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("sys.argv", ["over_training", "/nowhere", "--copies", "/nowhere", "/nowhere.txt"])
    with pytest.raises(SystemExit) as ended:
        over_training.main()
    assert ended.value.code == 1 and capsys.readouterr().err.count("\n") == 1

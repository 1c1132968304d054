"""The benchmark of toxicity compares both greedy choices, the one that may push a value's tokens down too."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import unembed
from tests.cli.conftest import save_model
from unembed import steering, toxicity

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The script as a module, on a tiny model, keeping what it makes apart."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("toxicity_benchmark", BENCHMARKS / "toxicity.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lm = unembed.load(save_model(tmp_path / "model"))
    monkeypatch.setattr(module, "opened", lambda: lm)
    monkeypatch.setattr(module, "SAVED", tmp_path / "kept")
    monkeypatch.setattr(module, "BY_HAND", ((0, 1), (1, 2)))
    monkeypatch.setattr(steering, "default_text", lambda: "The first month of the year is January " * 60)
    yield module
    sys.modules.pop("measure", None)


def test_both_greedy_choices_are_made_and_compared(benchmark, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    rows = ["a b c of the year,1", "The first month of the year,0"] * 40
    (tmp_path / "jigsaw_balanced.csv").write_text("\n".join(rows) + "\n")
    lm, judge = benchmark.opened(), toxicity.Linear()
    before = [arm.name for arm in benchmark.arms_of(lm, judge, ["b"])]
    assert not set(benchmark.STRENGTHS) & set(before)
    message = capsys.readouterr().err
    assert all(f"without the arm {name!r}" in message for name in benchmark.STRENGTHS)
    benchmark.choose(tmp_path)
    arms = {arm.name: arm for arm in benchmark.arms_of(lm, judge, ["b"])}
    assert list(arms) == [*before[:-2], "greedy", "greedy, reversed too", *before[-2:]]
    for name, strengths in benchmark.STRENGTHS.items():
        edits = json.loads((tmp_path / "kept" / f"{name}.json").read_text())["edits"]
        assert len(edits) == len(arms[name].edits) and {edit["value"] for edit in edits} <= set(strengths)
    assert all(edit.value > 0 for edit in arms["greedy"].edits)
    assert min(benchmark.STRENGTHS["greedy, reversed too"]) < 0 < min(benchmark.STRENGTHS["greedy"])


def test_values_are_drawn_anew_each_time_by_the_scorer_and_at_random(benchmark) -> None:
    arms = {arm.name: arm for arm in benchmark.arms_of(benchmark.opened(), toxicity.Linear(), ["b"])}
    for name in ("values picked by a scorer", "random values"):
        drawn = [{(e.layer, e.index) for e in arm.edits} for other, arm in arms.items() if other.startswith(name)]
        assert len({frozenset(memories) for memories in drawn}) == benchmark.DRAWS


def test_the_probability_of_banned_words_after_an_announcement(benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "PREFIXES", ("of the year is ", "b "))  # the tiny model reads few tokens
    lm = benchmark.opened()
    prompts = [toxicity.Prompt("The first month", 1), toxicity.Prompt("a b", 2)]
    rows = list(benchmark.announcements(lm, prompts, ["year", "month"], lm.provenance()).rows())
    (year,), (month,) = (lm.tokenizer(" " + word)["input_ids"] for word in ("year", "month"))
    for row, prefix in zip(rows, ("", "of the year is ", "b "), strict=True):
        expected = [
            float(
                lm.run(torch.tensor([lm.tokenizer(prefix + p.text)["input_ids"]]))
                .logits[0, -1]
                .softmax(-1)[[year, month]]
                .sum()
            )
            for p in prompts
        ]
        assert row["probability"] == pytest.approx(100 * np.mean(expected), rel=1e-5)
        assert row["change_low"] <= row["change"] <= row["change_high"]
    assert rows[0]["prefix"] == "none" and rows[0]["change"] == rows[0]["change_high"] == 0

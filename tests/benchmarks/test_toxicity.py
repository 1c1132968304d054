"""The benchmark of toxicity compares both greedy choices, the one that may push a value's tokens down too."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

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
    assert list(arms) == [*before[:4], "greedy", "greedy, reversed too", *before[4:]]
    for name, strengths in benchmark.STRENGTHS.items():
        edits = json.loads((tmp_path / "kept" / f"{name}.json").read_text())["edits"]
        assert len(edits) == len(arms[name].edits) and {edit["value"] for edit in edits} <= set(strengths)
    assert all(edit.value > 0 for edit in arms["greedy"].edits)
    assert min(benchmark.STRENGTHS["greedy, reversed too"]) < 0 < min(benchmark.STRENGTHS["greedy"])

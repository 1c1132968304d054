"""`unembed report` with several models: one page with a column for each, and a report of each in its own folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import Result

from tests.cli.conftest import save_model
from unembed.reports import DATES, reopen
from unembed.reports.study import Study

OPTIONS = ("sequences=2", "tokens=60", "windows=2", "control=false")


def test_several_models_are_compared_and_a_finished_one_is_not_run_again(
    unembed: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    models = [save_model(tmp_path / family, family) for family in ("gpt2", "llama")]
    text, out = tmp_path / "text.txt", tmp_path / "report"
    text.write_text("The first month of the year is the first month of the year of a month . " * 30)
    words = ["report", "elhage2021", *(w for folder in models for w in ("--model", folder)), "--corpus", text]
    words += [*(w for option in OPTIONS for w in ("--option", option)), "--out", out, "--json"]
    done = unembed(*words)
    assert done.exit_code == 0, done.stderr
    made = reopen(out)
    names = [str(name) for name in made["verdicts"].column_names[1:]]
    assert len(names) == 2 and all(name in done.stderr for name in map(str, models))
    for folder, name in zip(models, names, strict=True):
        (own,) = [reopen(path) for path in out.iterdir() if path.is_dir() and path.name.endswith(folder.name)]
        verdicts = {row["claim_text"]: row[name] for row in made["verdicts"].rows()}
        assert {f.claim: verdicts[f.claim].partition(",")[0] for f in own.findings} == {
            f.claim: f"{f.verdict} (extension)" if f.extension else f.verdict for f in own.findings
        }
    monkeypatch.setattr(Study, "run", lambda *_, **__: pytest.fail("a finished report was run again"))
    again = unembed(*words)
    assert again.exit_code == 0 and json.loads(again.stdout) == json.loads(done.stdout)
    refused = unembed(*words, "--index", tmp_path)
    assert refused.exit_code == 1 and "an index belongs to one model, but several are given" in refused.stderr
    refused = unembed("report", "geva2022", "--index", tmp_path)
    assert refused.exit_code == 1 and "--index" in refused.stderr and "uses a text, not an index" in refused.stderr


def test_the_checkpoints_of_a_training_are_dated(
    unembed: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    for seed, step in enumerate((10, 2)):
        torch.manual_seed(seed)
        save_model(tmp_path / "run" / f"step{step}", "gpt2")
    text, out = tmp_path / "text.txt", tmp_path / "report"
    text.write_text("The first month of the year is the first month of the year of a month . " * 30)
    words = ["report", "elhage2021", "--model", tmp_path / "run", "--revisions", "step*", "--tokens-per-step", "100"]
    words += ["--corpus", text, "--out", out, *(w for option in OPTIONS for w in ("--option", option))]
    done = unembed(*words)
    assert done.exit_code == 0, done.stderr
    made = reopen(out)
    assert {"tokens_after", "tokens_at_most"} < set(made[DATES].column_names)
    assert "tokens at most" in " ".join(done.stdout.split())
    owns = [reopen(out / name) for name in ("step2", "step10")]
    assert [list(made.facts)[i] for i in (0, 1)] == ["200 tokens", "1,000 tokens"]
    for row in made[DATES].rows():
        claim = row["claim_text"].removesuffix(" (extension)")
        first, last = (next(f for f in own.findings if f.claim == claim) for own in owns)
        assert first.extension == row["claim_text"].endswith(" (extension)")
        holds = [f.verdict == "agrees" and first.informative and last.informative for f in (first, last)]
        assert row["tokens_at_most"] == (None if not holds[1] else 200 if holds[0] else 1000)
    both = unembed("report", "elhage2021", "--model", "a", "--model", "b", "--revisions", "step*")
    assert both.exit_code == 1 and "selects checkpoints of a single model" in both.stderr

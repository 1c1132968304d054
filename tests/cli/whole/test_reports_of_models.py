"""`unembed report` with several models: one page with a column for each, and a report of each in its own folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tests.cli.conftest import save_model
from unembed.reports import reopen
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
            f.claim: f.verdict for f in own.findings
        }
    monkeypatch.setattr(Study, "run", lambda *_, **__: pytest.fail("a finished report was run again"))
    again = unembed(*words)
    assert again.exit_code == 0 and json.loads(again.stdout) == json.loads(done.stdout)
    refused = unembed(*words, "--index", tmp_path)
    assert refused.exit_code == 1 and "an index is of one model" in refused.stderr

"""Stages: found again with the same settings, deleted by name with others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from unembed.reports import stages
from unembed.reports.stages import STAGES, Work, is_finished


def begun(folder: Path, **key: object) -> tuple[Work, list[str]]:
    """A run's state, and the lines of progress of its beginning."""
    lines: list[str] = []
    work = Work(folder, key, progress=lambda what, done, total: lines.append(what))
    work.begin()
    return work, lines


def test_a_stage_is_computed_once(tmp_path: Path) -> None:
    work, lines = begun(tmp_path, model="wren")
    assert not lines
    work.stage("numbers", lambda: {"n": np.arange(3), "names": np.array(["a", "北b"]), "none": np.array([], np.str_)})
    again, lines = begun(tmp_path, model="wren")
    assert not lines
    stored = again.stage("numbers", lambda: pytest.fail("computed again"))
    assert stored["n"].tolist() == [0, 1, 2] and stored["names"].tolist() == ["a", "北b"]
    assert stored["none"].dtype.kind == "U" and not len(stored["none"])


def test_stages_of_other_settings_are_deleted_by_name(tmp_path: Path) -> None:
    work, _ = begun(tmp_path, model="wren", seed=0)
    work.stage("numbers", lambda: {"n": np.arange(3)})
    other, lines = begun(tmp_path, model="smollm2", seed=1)
    assert lines == ["starting over: the saved stages differ in model and seed"]
    assert not list((tmp_path / STAGES).glob("*.safetensors"))
    assert other.stage("numbers", lambda: {"m": np.arange(2)})["m"].tolist() == [0, 1]


def test_stages_without_settings_are_of_another_version(tmp_path: Path) -> None:
    (tmp_path / STAGES).mkdir()
    (tmp_path / STAGES / "numbers.safetensors").write_bytes(b"")
    _, lines = begun(tmp_path, model="wren")
    assert lines == ["starting over: the saved stages differ in version"]
    assert [path.name for path in (tmp_path / STAGES).iterdir()] == ["key.json"]


def test_a_damaged_stage_is_computed_again(tmp_path: Path) -> None:
    work, _ = begun(tmp_path)
    path = work.path("numbers", "safetensors")
    path.write_bytes(b"half a file")
    assert work.stage("numbers", lambda: {"n": np.arange(3)})["n"].tolist() == [0, 1, 2]
    assert replace(work, key={"seed": 1}).path("numbers", "safetensors") != path


def test_the_digest_is_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "unembed" / "reports" / "stages.py"
    source.parent.mkdir(parents=True)
    source.write_text("a = 1")
    monkeypatch.setattr(stages, "__file__", str(source))
    first = stages.code_digest.__wrapped__()
    source.write_text("a = 2")
    assert stages.code_digest.__wrapped__() != first


def test_a_finished_report_is_recognised_by_its_settings(tmp_path: Path) -> None:
    work, _ = begun(tmp_path, model="wren", options={"examples": "60"})
    assert not is_finished(tmp_path, work.key)
    work.finished()
    assert is_finished(tmp_path, work.key) and not is_finished(tmp_path, {**work.key, "seed": 1})
    begun(tmp_path, model="wren", seed=1)  # the folder's report may now be replaced
    assert not is_finished(tmp_path, work.key)

"""An interrupted ranking goes on where it stopped, and finds what an uninterrupted one finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sweeps.recorder import lettered
from unembed.corpus import open_corpus
from unembed.gallery import FILE
from unembed.gallery.candidates import Candidate
from unembed.gallery.evidence import Evidence
from unembed.gallery.saved_progress import SavedProgress
from unembed.gallery.text_evidence import TextEvidence
from unembed.index import Index


class Interrupted(Exception):
    """Raised in place of Ctrl-C."""


def made(path: Path) -> Index:
    """An index of a tiny gated model."""
    return Index.build(lettered("llama"), open_corpus(["abcabc " * 20] * 10, segmentation="windows", window=32), path)


@pytest.mark.parametrize("stops_at", ["judge", "add_effects"])
def test_an_interrupted_ranking_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops_at: str
) -> None:
    monkeypatch.setattr("unembed.gallery.ranking._AT_ONCE", 20)
    work, calls, stop = getattr(TextEvidence, stops_at), list[int](), 0

    def counted(self: TextEvidence, *args: object) -> None:
        calls.append(1)
        if len(calls) == stop:
            raise Interrupted
        work(self, *args)

    monkeypatch.setattr(TextEvidence, stops_at, counted)
    whole = made(tmp_path / "whole").memories(5)
    steps, stop = len(calls), 2
    assert steps > 1
    calls.clear()
    index = made(tmp_path / "index")
    with pytest.raises(Interrupted):
        index.memories(5)
    assert not (tmp_path / "index" / FILE).exists() and (tmp_path / "index" / ".ranking").exists()
    calls.clear()
    stop = 0
    assert index.memories(5).to_dict()["memories"] == whole.to_dict()["memories"]
    assert len(calls) == steps - 1, "the step that was finished is not done again"
    assert not (tmp_path / "index" / ".ranking").exists()


def test_steps_are_done_again_under_another_key_and_where_a_file_is_damaged(tmp_path: Path) -> None:
    one = Candidate(0, 1, "negative", (3, 4), "months", (3,), "after 'on'")
    one.found["effect"] = Evidence(0.5, 0.001)
    saved = SavedProgress(tmp_path / "steps", "a")
    assert saved.step("layer 0", lambda: [one]) == [one]
    assert SavedProgress(tmp_path / "steps", "a").step("layer 0", list) == [one]
    assert SavedProgress(tmp_path / "steps", "b").step("layer 0", list) == []
    (tmp_path / "steps" / "layer 0.json").write_text("{")
    assert SavedProgress(tmp_path / "steps", "a").step("layer 0", lambda: [one, one]) == [one, one]


def test_without_a_folder_and_in_one_that_cannot_be_written_every_step_is_done(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for saved in (SavedProgress(), SavedProgress(tmp_path / "file" / "steps", "a")):
        assert saved.step("layer 0", list) == []
        saved.remove()

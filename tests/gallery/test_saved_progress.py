"""An interrupted ranking goes on where it stopped, and finds what an uninterrupted one finds."""

from __future__ import annotations

import shutil
from collections import Counter
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

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


STEPS = ("judge", "add_effects")


def counting(patch: pytest.MonkeyPatch, calls: Counter[str], stops_at: str = "") -> None:
    """Count the steps of a ranking of few memories a step, and interrupt the second step of one name."""
    patch.setattr("unembed.gallery.ranking._AT_ONCE", 20)
    work: dict[str, Any] = {name: getattr(TextEvidence, name) for name in STEPS}

    def counted(name: str, *args: object) -> None:
        calls[name] += 1
        if name == stops_at and calls[name] == 2:
            raise Interrupted
        work[name](*args)

    for name in STEPS:
        patch.setattr(TextEvidence, name, partialmethod(partial(counted, name)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any], Counter[str]]:
    """An index of a tiny gated model, not ranked yet; what an uninterrupted ranking finds; and its steps."""
    path, calls = tmp_path_factory.mktemp("whole") / "index", Counter[str]()
    Index.build(lettered("llama"), open_corpus(["abcabc " * 20] * 10, segmentation="windows", window=32), path)
    index = copied(path, path.parent / "ranked")
    with pytest.MonkeyPatch.context() as patch:
        counting(patch, calls)
        return path, index.memories(5).to_dict()["memories"], calls


def copied(path: Path, to: Path) -> Index:
    """The index in a folder of its own."""
    return Index.open(shutil.copytree(path, to), lettered("llama"))


@pytest.mark.parametrize("stops_at", STEPS)
def test_an_interrupted_ranking_goes_on_where_it_stopped(
    whole: tuple[Path, list[Any], Counter[str]], tmp_path: Path, stops_at: str
) -> None:
    path, expected, steps = whole
    assert steps[stops_at] > 1
    index, calls = copied(path, tmp_path / "index"), Counter[str]()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        counting(patch, calls, stops_at)
        index.memories(5)
    assert not (tmp_path / "index" / FILE).exists() and (tmp_path / "index" / ".ranking").exists()
    with pytest.MonkeyPatch.context() as patch:
        counting(patch, calls := Counter[str]())
        assert index.memories(5).to_dict()["memories"] == expected
    assert calls[stops_at] == steps[stops_at] - 1, "the step that was finished is not done again"
    assert not (tmp_path / "index" / ".ranking").exists()


def test_steps_are_done_again_under_another_key_and_where_a_file_is_damaged(tmp_path: Path) -> None:
    one = Candidate(0, 1, "negative", (3, 4), "months", (3,), "after 'on'")
    one.found["effect"] = Evidence(0.5, 0.001)
    saved = SavedProgress(tmp_path / "steps", "a")
    assert saved.step("layer 0", lambda: [one]) == [one]
    assert SavedProgress(tmp_path / "steps", "a").step("layer 0", list) == [one]
    assert SavedProgress(tmp_path / "steps", "b").step("layer 0", list) == []
    (tmp_path / "steps" / "layer 0.safetensors").write_text("{")
    assert SavedProgress(tmp_path / "steps", "a").step("layer 0", lambda: [one, one]) == [one, one]


def test_without_a_folder_and_in_one_that_cannot_be_written_every_step_is_done(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for saved in (SavedProgress(), SavedProgress(tmp_path / "file" / "steps", "a")):
        assert saved.step("layer 0", list) == []
        saved.remove()

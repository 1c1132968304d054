"""On a disk that is really full: builds end with one line and go on to the same bytes, labels are kept whole or not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.index.test_build import contents
from unembed.index import Index

_APART = ("unshare", "--map-root-user", "--mount")


def own_mounts() -> bool:
    """Whether this process may mount a small disk of its own."""
    if shutil.which("unshare") is None:
        return False
    tried = (*_APART, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/tmp")
    return subprocess.run(tried, capture_output=True).returncode == 0


@pytest.mark.skipif(not own_mounts(), reason="this system lets nobody mount a small disk")
def test_a_build_resumes_as_disk_space_becomes_free(built: Index, folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    program = (sys.executable, "-m", "tests.index.full_disk", str(tmp_path / "disk"), str(folders["gpt2"]))
    done = subprocess.run((*_APART, *program), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    errors = [one["error"] for one in rounds]
    assert errors[-1] is None and len(errors) > 5
    for error in errors[:-1]:
        assert "No space left on device" in error or "disk is full" in error, error
        assert "Make room" in error and "\n" not in error
    assert not any(one["left"] or one["unsound"] for one in rounds)
    assert contents(tmp_path / "disk.copy/index") == contents(built.path)


@pytest.mark.skipif(not own_mounts(), reason="this system lets nobody mount a small disk")
def test_labels_are_stored_completely_or_not_and_read_on_any_disk(built: Index, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    program = (sys.executable, "-m", "tests.index.full_disk_labels", str(tmp_path / "disk"), str(built.path))
    done = subprocess.run((*_APART, *program), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    room, full, read_only, again = (json.loads(line) for line in done.stdout.splitlines())
    assert (room["error"], again["error"]) == (None, None)
    assert "disk is full" in full["error"] and "readonly" in read_only["error"]
    assert all("Check the permissions" in one["error"] for one in (full, read_only))
    assert [one["labels"] for one in (room, full, read_only, again)] == [4, 4, 4, 8]
    assert all(one["in_sql"] == one["labels"] for one in (room, full, read_only, again))

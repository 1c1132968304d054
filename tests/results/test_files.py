"""Writes that fail because of the place, by any library, end in one sentence; other failures stay what they are."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from unembed.errors import InvalidInput, UnembedError
from unembed.results import writing


def failed(place: Path, error: BaseException) -> UnembedError:
    with pytest.raises(UnembedError) as caught, writing(place, instead="Make room"):
        raise error
    return caught.value


def test_a_full_disk_is_told_by_the_system_or_by_a_library_that_wraps_it(tmp_path: Path) -> None:
    wrapped = RuntimeError("unexpected pos 64 vs 0")
    wrapped.__context__ = OSError(errno.ENOSPC, "No space left on device")
    of_rust = ValueError("Error while serializing: I/O error: No space left on device (os error 28)")
    for error in (OSError(errno.ENOSPC, "No space left on device"), wrapped, of_rust):
        assert str(failed(tmp_path, error)) == f"cannot write {tmp_path}: No space left on device. Make room."


def test_a_place_without_leave_to_write_is_told_and_a_source_without_leave_to_read_is_not(tmp_path: Path) -> None:
    mine, other = str(tmp_path / "out" / "file"), str(tmp_path / "corpus.txt")
    assert "Permission denied" in str(
        failed(tmp_path / "out", PermissionError(errno.EACCES, "Permission denied", mine))
    )
    with pytest.raises(PermissionError), writing(tmp_path / "out", instead="Make room"):
        raise PermissionError(errno.EACCES, "Permission denied", other)


@pytest.mark.parametrize("error", [InvalidInput("a prompt", why="it is empty"), RuntimeError("a defect"), KeyError(28)])
def test_other_failures_pass_as_they_are(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as caught, writing(tmp_path, instead="Make room"):
        raise error
    assert caught.value is error

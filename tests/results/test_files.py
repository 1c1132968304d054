"""Writes that fail because of the place, by any library, end in one sentence; other failures stay what they are."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from unembed.errors import InvalidInput, UnembedError
from unembed.results import whole_file, write_whole, writing


def failed(place: Path, error: BaseException) -> UnembedError:
    with pytest.raises(UnembedError) as caught, writing(place, instead="Make room"):
        raise error
    return caught.value


def test_a_full_disk_is_recognised_from_the_system_or_a_library_that_wraps_it(tmp_path: Path) -> None:
    wrapped = RuntimeError("unexpected pos 64 vs 0")
    wrapped.__context__ = OSError(errno.ENOSPC, "No space left on device")
    of_rust = ValueError("Error while serializing: I/O error: No space left on device (os error 28)")
    for error in (OSError(errno.ENOSPC, "No space left on device"), wrapped, of_rust):
        assert str(failed(tmp_path, error)) == f"cannot write {tmp_path}: No space left on device. Make room."


def test_a_place_that_cannot_be_written_is_reported_and_an_unreadable_source_is_not(tmp_path: Path) -> None:
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


def test_a_failed_block_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = write_whole(tmp_path / "result.npz", "first")
    with pytest.raises(KeyError), whole_file(target) as temporary:
        temporary.write_text("half")
        assert target.read_text() == "first"
        raise KeyError
    assert target.read_text() == "first" and list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("durable", [False, True])
def test_a_complete_file_replaces_the_old_one_with_ordinary_permissions(tmp_path: Path, durable: bool) -> None:
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    target = write_whole(tmp_path / "a [1].json", "first")
    with whole_file(target, durable=durable) as temporary:
        temporary.write_text("second")
    assert target.read_text() == "second" and target.stat().st_mode == ordinary.stat().st_mode


def test_a_durable_write_removes_what_a_killed_writer_of_the_same_file_left(tmp_path: Path) -> None:
    target, other = tmp_path / "a [1].json", tmp_path / ".b.json.7-7.writing"
    (tmp_path / ".a [1].json.99999-7.writing").write_bytes(b"half")
    other.write_bytes(b"half")
    with whole_file(target, durable=True) as temporary:
        temporary.write_text("second")
    assert sorted(tmp_path.iterdir()) == [other, target]

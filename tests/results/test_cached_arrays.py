"""Arrays are made once, read afterwards, and made again where their file is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unembed.results.cached_arrays import cached_arrays


def test_arrays_are_made_once_and_again_where_their_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    made: list[int] = []

    def make() -> dict[str, np.ndarray]:
        made.append(1)
        return {"numbers": np.arange(5), "flags": np.array([True, False])}

    for _ in range(2):
        found = cached_arrays("some-key", make)
        assert found["numbers"].tolist() == [0, 1, 2, 3, 4] and found["flags"].tolist() == [True, False]
    assert len(made) == 1
    (path,) = (tmp_path / "cache").iterdir()
    path.write_bytes(path.read_bytes()[:40])
    assert cached_arrays("some-key", make)["numbers"].tolist() == [0, 1, 2, 3, 4] and len(made) == 2
    np.savez(tmp_path / "other-key.npz", numbers=np.ones(2))
    assert cached_arrays("other-key", make, tmp_path)["numbers"].tolist() == [1, 1] and len(made) == 2


def test_arrays_are_made_again_whichever_byte_of_their_file_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed byte is noticed, or does no harm; NumPy, zipfile, zlib and tokenize each raise their own errors."""
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path))
    expected = np.arange(50)
    cached_arrays("key", lambda: {"numbers": expected})
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x15]) + whole[place + 1 :])
        found = cached_arrays("key", lambda: {"numbers": expected})
        assert np.array_equal(found.get("numbers", expected), expected)


def test_where_nothing_can_be_written_arrays_are_made_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "file" / "cache"))
    for _ in range(2):
        assert cached_arrays("some-key", lambda: {"numbers": np.arange(3)})["numbers"].tolist() == [0, 1, 2]

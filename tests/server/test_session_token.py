"""A token survives a restart, for a day, and only where nobody else could have read or written it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from unembed.server.session_token import LIFETIME, session_token


def test_a_second_start_on_the_port_has_the_token_of_the_first(tmp_path: Path) -> None:
    first = session_token(7333, tmp_path / "cache")
    assert len(first) == 32
    assert session_token(7333, tmp_path / "cache") == first
    assert session_token(7334, tmp_path / "cache") != first


@pytest.mark.skipif(os.name == "nt", reason="modes are another thing there")
def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    session_token(7333, tmp_path)
    assert stat.S_IMODE((tmp_path / "explorer-7333.token").stat().st_mode) == 0o600


@pytest.mark.skipif(os.name == "nt", reason="modes are another thing there")
@pytest.mark.parametrize("how", ["readable", "link", "old", "other text", "not text"])
def test_a_token_that_is_old_or_that_others_could_have_is_replaced(tmp_path: Path, how: str) -> None:
    first = session_token(7333, tmp_path)
    path = tmp_path / "explorer-7333.token"
    if how == "readable":
        path.chmod(0o644)
    elif how == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif how == "old":
        then = path.stat().st_mtime - LIFETIME - 1
        os.utime(path, (then, then))
    elif how == "other text":
        path.write_text("a" * 31 + ";")
    else:
        path.write_bytes(b"\xff" * 32)
    second = session_token(7333, tmp_path)
    assert second != first
    assert session_token(7333, tmp_path) == second
    assert not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_that_cannot_be_written_to_still_gives_a_token(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert len(session_token(7333, tmp_path / "file")) == 32

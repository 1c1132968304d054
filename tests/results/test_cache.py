"""Where the cache folder lies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from unembed.results.cache import cache_folder


@pytest.mark.parametrize(
    ("platform", "variable", "expected"),
    [
        ("linux", "XDG_CACHE_HOME", "cache/unembed"),
        ("linux", None, "home/.cache/unembed"),
        ("darwin", None, "home/Library/Caches/unembed"),
        ("win32", "LOCALAPPDATA", "cache/unembed"),
        ("win32", "UNEMBED_CACHE", "cache"),
    ],
)
def test_the_cache_folder_is_that_of_the_platform(
    platform: str, variable: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UNEMBED_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    if variable is not None:
        monkeypatch.setenv(variable, str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / expected

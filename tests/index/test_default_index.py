"""Ready indexes lie in the cache folder of the user, whatever the working directory."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from unembed.index import Index
from unembed.index.default_index import cache_folder, cached_index
from unembed.language_model import LanguageModel


def test_the_working_directory_does_not_matter(
    built: Index, lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        shutil.copytree(built.path, Path(".cache/unembed/ready"))
        assert cached_index(lm) is None
    shutil.copytree(built.path, tmp_path / "cache" / "ready")
    found = cached_index(lm)
    assert found is not None and found.path == tmp_path / "cache" / "ready"


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

"""Ready indexes lie in the cache folder of the user, whatever the working directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from unembed.index import Index
from unembed.index.default_index import cached_index, cached_index_of_weights
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
    weights = built.manifest.weights
    assert cached_index_of_weights("0" * len(weights)) is None
    assert cached_index_of_weights(weights) is not None
    found = cached_index(lm)
    assert found is not None and found.path == tmp_path / "cache" / "ready"

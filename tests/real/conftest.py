"""SmolLM2, as `unembed models get smollm2` leaves it: every test in this folder is on it, and marked `real`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import USER_CACHE
from unembed.language_model import LanguageModel, load
from unembed.models.published_models import published_folder

VARIABLE = "UNEMBED_SMOLLM2"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("real")


def fetched() -> Path:
    """The folder of SmolLM2: `$UNEMBED_SMOLLM2`, else what was fetched into the user's cache."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    with pytest.MonkeyPatch.context() as patch:
        if USER_CACHE is None:
            patch.delenv("UNEMBED_CACHE")
        else:
            patch.setenv("UNEMBED_CACHE", USER_CACHE)
        return published_folder("smollm2")


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The model's folder, which tests only read."""
    folder = fetched()
    if not (folder / "config.json").exists():
        pytest.skip(f"SmolLM2 is not here: unembed models get smollm2, or name its folder in {VARIABLE}")
    return folder


@pytest.fixture(scope="session")
def smollm2(smollm2_folder: Path) -> LanguageModel:
    """The model, opened once; tests leave it as it is."""
    return load(smollm2_folder)


@pytest.fixture
def named(smollm2_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder of the test's own in which `--model smollm2` is that model."""
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    published_folder("smollm2").parent.mkdir(parents=True)
    published_folder("smollm2").symlink_to(smollm2_folder)

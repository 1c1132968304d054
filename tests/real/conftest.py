"""SmolLM2, as `unembed models get smollm2` leaves it: every test in this folder is on it, and marked `real`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import USER_CACHE
from unembed.jacobian import JacobianLens, cached_lens, lens_path
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
    with users_cache():
        return published_folder("smollm2")


@contextmanager
def users_cache() -> Iterator[None]:
    """A context in which the cache folder is the user's, not that of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        if USER_CACHE is None:
            patch.delenv("UNEMBED_CACHE", raising=False)
        else:
            patch.setenv("UNEMBED_CACHE", USER_CACHE)
        yield


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
    """A cache folder of the test's own in which `--model smollm2` is that model, with the lens that the user fitted."""
    with users_cache():
        lenses = lens_path("x").parent
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    published_folder("smollm2").parent.mkdir(parents=True)
    published_folder("smollm2").symlink_to(smollm2_folder)
    if lenses.is_dir():
        lens_path("x").parent.symlink_to(lenses)


@pytest.fixture(scope="session")
def smollm2_lens(smollm2: LanguageModel) -> JacobianLens:
    """The lens by which commands read the model, from the user's cache folder."""
    with users_cache():
        lens = cached_lens(smollm2)
    if lens is None:
        pytest.skip("SmolLM2's lens is not here: unembed fit-lens --model smollm2")
    return lens

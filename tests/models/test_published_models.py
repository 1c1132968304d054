"""Models outside the package have a row each; one that was not fetched is refused with the command that fetches it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import unembed
from unembed.errors import ModelUnavailable
from unembed.models.published_models import PUBLISHED, fetched_folder, is_fetched, published_folder
from unembed.models.shipped_models import SHIPPED


def test_every_row_is_whole() -> None:
    assert not set(PUBLISHED) & set(SHIPPED)
    for row in PUBLISHED.values():
        assert re.fullmatch(r"[0-9a-f]{64}", row.sha256) and row.file.endswith(".gguf") and row.licence
        assert row.megabytes > 0 and re.fullmatch(r"[\d.]+", row.version)


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_a_model_that_was_not_fetched_is_refused_with_the_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path))
    published_folder(name).mkdir(parents=True)  # empty: not complete
    assert not is_fetched(name)
    for opening in (fetched_folder, unembed.load):
        with pytest.raises(ModelUnavailable, match=f"unembed models get {name}"):
            opening(name)

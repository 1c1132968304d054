"""What a name opens is known again while its files are as they were, and only then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import save_model
from unembed.language_model import load
from unembed.models.fingerprint import sampled_fingerprint, weights_fingerprint
from unembed.models.weight_records import KnownWeights, known_weights, record_weights


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_recorded_weights_are_known_until_a_file_changes(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "tiny")
    lm = load(folder)
    weights = weights_fingerprint(lm)
    assert known_weights(str(folder)) is None
    record_weights(str(folder), None, lm, weights)
    assert known_weights(str(folder)) == KnownWeights(weights, sampled_fingerprint(lm))
    file = folder / "model.safetensors"
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    assert known_weights(str(folder)) is None


def test_each_model_has_its_own_record(tmp_path: Path) -> None:
    one, other = save_model(tmp_path / "one"), save_model(tmp_path / "other", "llama")
    for folder in (one, other):
        record_weights(str(folder), None, load(folder), f"weights of {folder.name}")
    found = [known_weights(str(folder)) for folder in (one, other)]
    assert [known and known.weights for known in found] == ["weights of one", "weights of other"]


@pytest.mark.parametrize("content", ["", "[]", '{"x": 3}', '{"x": {"files": []}}'])
def test_a_damaged_record_is_ignored(cache: Path, content: str) -> None:
    cache.mkdir()
    (cache / "weights.json").write_text(content)
    assert known_weights("wren") is None


def test_a_name_without_files_has_no_record(cache: Path) -> None:
    for name in ("no/such-model", "not a name", "\0"):
        assert known_weights(name) is None
        record_weights(name, None, load("attn-0l"), "none")
    assert not cache.exists()

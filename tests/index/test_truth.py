"""The truth of readings by layer, stored with an index, and values read by a fitted lens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.index.conftest import corpus_of
from unembed.errors import InvalidInput
from unembed.index import Index, IndexSettings
from unembed.index.truth import FILE
from unembed.jacobian import fit_lens
from unembed.language_model import LanguageModel, load
from unembed.memories import reading_truth
from unembed.memories.values import value_readings

WORDS = ["The", "first", "month", "of", "the", "year", "is", "January", *"abcdefgh", "."]


@pytest.fixture(scope="module")
def text() -> list[str]:
    return [" ".join(np.random.default_rng(0).choice(WORDS, 12_000).tolist())]


def test_what_is_measured_is_stored_and_shown(folders: dict[str, Path], text: list[str], tmp_path: Path) -> None:
    lm = load(folders["gpt2"])
    index = Index.build(lm, corpus_of(), tmp_path / "i", top=3, settings=IndexSettings(top_tokens=6))
    assert index.truth is None and index.status()["truth"] is None
    made = index.measure_truth(5, corpus=text, contexts=3)
    expected = list(reading_truth(lm, per_layer=5, corpus=text, contexts=3).by_layer().rows())
    assert [row["correlation"] for row in made.rows] == pytest.approx([row["correlation"] for row in expected])
    again = Index.open(tmp_path / "i").truth
    assert again is not None and again.rows == made.rows and again.lens is None
    assert again.provenance.basis == "raw"
    line = index.status()["truth"]
    assert line.startswith(f"r {made.rows[0]['correlation']:.2f} in layer 0") and line.endswith("(basis raw)")
    for row in made.rows:
        words = made.in_words(row["layer"])
        assert words is not None and f"{row['correlation']:.2f}" in words
        is_above = row["correlation"] >= row["control_99"]
        assert made.is_above_control(row["layer"]) == is_above
        assert ("is not what the value raises" in words) != is_above
    assert made.in_words(99) is None
    (tmp_path / "i" / FILE).write_text("{}")
    with pytest.raises(InvalidInput, match="index truth"):
        _ = Index.open(tmp_path / "i").truth


def test_an_index_says_by_which_lens_its_values_were_read(
    folders: dict[str, Path], text: list[str], tmp_path: Path
) -> None:
    """Values are read anew where the lens has changed; the sweep of the text is not repeated."""
    lm: LanguageModel = load(folders["gpt2"])
    settings, folder = IndexSettings(top_tokens=6), tmp_path / "i"

    def build() -> Index:
        return Index.build(lm, corpus_of(), folder, top=3, settings=settings)

    plain = build()
    assert plain.provenance.basis == "raw" and "lens" not in plain.manifest.settings
    triggers = (folder / "triggers/positive/position.npy").stat().st_mtime_ns
    raw = value_readings(lm, 6, basis="raw").ids.flatten(0, 1).tolist()
    assert plain.readings[0].tolist() == raw
    lm.use_lens(fit_lens(lm, text, contexts=4, length=16))
    read = build()
    assert read.provenance.basis == "jacobian" and len(read.manifest.settings["lens"]) == 12
    carried = value_readings(lm, 6, basis="jacobian").ids.flatten(0, 1).tolist()
    assert read.readings[0].tolist() == carried != raw
    assert (folder / "triggers/positive/position.npy").stat().st_mtime_ns == triggers
    truth = read.measure_truth(4, corpus=text, contexts=2)
    assert truth.lens == read.manifest.settings["lens"] and truth.provenance.basis == "jacobian"
    lm.lens = None
    again = build()
    assert again.provenance.basis == "raw" and again.readings[0].tolist() == raw

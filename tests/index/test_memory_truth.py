"""How true one memory's reading is: measured now, from the gallery, or as its layer's median."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import unembed
from tests.index.conftest import corpus_of
from unembed.cli.commands import app
from unembed.gallery import FILE, Gallery, memory_descriptions
from unembed.index import Index, IndexSettings, atlas_view, measured_truth_view, truth_view
from unembed.jacobian import lens_identity
from unembed.language_model import LanguageModel, load
from unembed.memories import reading_truth
from unembed.models.shipped_models import shipped_folder

WORDS = ["The", "first", "month", "of", "the", "year", "is", "January", *"abcdefgh", "."]


@pytest.fixture(scope="module")
def wren() -> LanguageModel:
    return unembed.load("wren")


def test_without_a_measurement_it_says_so(lm: LanguageModel, built: Index) -> None:
    view = truth_view(lm, built, 1, 3)
    assert (view.of, view.correlation, view.borne_out) == (None, None, None)
    assert view.words.endswith("was not measured.")


def test_a_layer_has_the_median_that_the_index_stores_for_the_same_reading(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    lm = load(folders["gpt2"])
    text = [" ".join(np.random.default_rng(0).choice(WORDS, 12_000).tolist())]
    index = Index.build(lm, corpus_of(), tmp_path / "i", top=3, settings=IndexSettings(top_tokens=6))
    made = index.measure_truth(5, corpus=text, contexts=3)
    view, row = truth_view(lm, index, 1, 3), made.of(1)
    assert row is not None and view.of == "layer"
    assert (view.correlation, view.control) == (row["correlation"], row["control_99"])
    assert view.borne_out == (row["correlation"] >= row["control_99"])
    assert index.memories(1).lens is None
    lm.fit_lens(text, 4, 8)
    assert truth_view(lm, index, 1, 3).of is None  # the numbers are of the logit lens
    assert index.memories(1).lens == lens_identity(lm), "it is ranked anew, not returned as it was saved"


def test_the_gallery_has_it_for_its_own_memories_by_its_own_lens(wren: LanguageModel) -> None:
    row = Gallery.load(shipped_folder("wren") / FILE)[0]
    assert row.truth is not None
    wren.lens = None
    assert truth_view(wren, None, row.layer, row.index).of is None
    wren.use_lens()
    view = truth_view(wren, None, row.layer, row.index)
    assert view.of == "memory" and view.borne_out == row.is_borne_out
    assert (view.correlation, view.control) == (row.truth.correlation, row.truth.control)
    assert f"r {row.truth.correlation:.2f}" in view.words
    assert f"Scores are those of the fitted lens {lens_identity(wren)}." in view.words
    measured = measured_truth_view(wren, row.layer, row.index)
    assert measured.correlation == pytest.approx(row.truth.correlation, abs=0.02)


def test_what_is_measured_now_is_what_the_command_measures(wren: LanguageModel) -> None:
    wren.lens = None
    expected = reading_truth(wren, ["L2M17"])
    view = measured_truth_view(wren, 2, 17)
    assert view.correlation == pytest.approx(float(expected.correlation[0]))
    assert view.control == pytest.approx(expected.bound(2)) and view.borne_out == expected.borne_out[0]
    words = f"{expected.in_words()[0].upper()}{expected.in_words()[1:]}."
    assert view.words == f"{words} Scores are those of the logit lens."


def test_a_value_whose_effect_does_not_bear_it_out_is_said_not_to_raise_its_tokens(
    wren: LanguageModel, tmp_path: Path
) -> None:
    gallery = Gallery.load(shipped_folder("wren") / FILE)
    row = gallery[0]
    assert row.truth is not None
    low = row.with_truth(replace(row.truth, correlation=row.truth.control - 0.01))
    text = corpus_of()
    index = Index.build(wren, text, tmp_path / "i", top=3, settings=IndexSettings(top_tokens=6))
    Gallery((low,), gallery.provenance).save(index.path / FILE)
    wren.use_lens()
    view = truth_view(wren, index, row.layer, row.index)
    assert view.borne_out is False and "does not raise" in view.words
    shown = CliRunner().invoke(app, ["value", row.name, "--index", str(index.path)], env={"COLUMNS": "200"})
    assert "does not raise what it is read to promote" in shown.stdout and row.description not in shown.stdout
    assert len(memory_descriptions(wren, index.path)) == 0, "so search, the explorer and the atlas have none either"
    listed = CliRunner().invoke(app, ["memories", "--index", str(index.path)], env={"COLUMNS": "200"})
    assert row.description not in listed.stdout and "no more than adding other values does" in listed.stdout


def test_the_card_of_a_memory_in_the_gallery_has_its_truth() -> None:
    row = Gallery.load(shipped_folder("wren") / FILE)[0]
    assert row.truth is not None
    shown = CliRunner().invoke(app, ["value", row.name], env={"COLUMNS": "200"}).stdout
    assert f"Adding it raises what it is read to promote: r {row.truth.correlation:.2f} over the vocabulary" in shown
    assert row.description in shown
    other = CliRunner().invoke(app, ["value", row.name, "--lens", "none"], env={"COLUMNS": "200"}).stdout
    assert "over the vocabulary" not in other, "the gallery's number is of the lens"
    assert "were made with the fitted lens" in " ".join(other.split())


def test_a_gallery_of_another_fitted_lens_is_said_to_be_one_and_its_numbers_are_not_used(
    wren: LanguageModel, tmp_path: Path
) -> None:
    index = Index.build(wren, corpus_of(), tmp_path / "i", top=3, settings=IndexSettings(top_tokens=6))
    shipped = Gallery.load(shipped_folder("wren") / FILE)
    wren.use_lens()
    own = lens_identity(wren)
    assert shipped.lens == own and shipped.is_read_by(own) and shipped.other_lens(own) is None
    other = replace(shipped.provenance, notes={**shipped.provenance.notes, "lens": "0123456789ab"})
    Gallery(shipped.rows[:20], other).save(index.path / FILE)
    says = f"made with the fitted lens 0123456789ab; tokens are now read by the fitted lens {own}"
    row = shipped[0]
    assert truth_view(wren, index, row.layer, row.index).of is None
    assert memory_descriptions(wren).other_lens is None
    assert says in str(memory_descriptions(wren, index.path).other_lens)
    assert says in atlas_view(wren, index).best_lens
    assert f"made with the fitted lens {own}" in atlas_view(wren).best_lens
    found = wren.trace("The war lasted from 1861").described_memories(index=index)
    assert says in found.provenance.notes["descriptions"]
    for command in (["memories", "--top", "20"], ["value", row.name], ["trace", "The war lasted from 1861"]):
        shown = CliRunner().invoke(app, [*command, "--index", str(index.path)], env={"COLUMNS": "300"})
        assert says in shown.output, command

"""Descriptions come from the gallery saved with an index, else from the one of an embedded model."""

from __future__ import annotations

import json

import pytest
import torch

import unembed
from tests.sweeps.recorder import lettered
from unembed.atlas.lines import Line, write_lines
from unembed.corpus import open_corpus
from unembed.errors import InvalidInput
from unembed.gallery import ALIKE, FILE, Gallery, MemoryDescriptions, memory_descriptions, rank_memories
from unembed.gallery.descriptions import ATLAS, MEMORIES, has_theme
from unembed.index import Index
from unembed.models import shipped_folder


@pytest.fixture(scope="module")
def wren() -> unembed.LanguageModel:
    return unembed.load()


def test_a_saved_gallery_is_the_same_when_it_is_loaded(wren, tmp_path):
    gallery = rank_memories(wren, top=5, layers=[5])
    gallery.save(tmp_path / FILE)
    assert Gallery.load(tmp_path / FILE).to_dict() == gallery.to_dict()
    assert Gallery.load(tmp_path / FILE).rows == gallery.rows


@pytest.mark.parametrize("content", ["", "{}", '{"schema": "unembed.memories/0"}', '{"schema": "unembed.memories/1"}'])
def test_another_file_is_refused_by_name(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(InvalidInput, match="not a saved gallery"):
        Gallery.load(tmp_path / FILE)


def test_wrens_descriptions_hold_in_any_dtype_and_only_for_its_own_weights(wren):
    half = unembed.load(dtype=torch.bfloat16)
    for lm in (wren, half):
        assert "month" in (memory_descriptions(lm).of(6, 718) or "")
    changed = unembed.load()
    with torch.no_grad():
        changed.weights.W_out[5].mul_(-1)
    assert len(memory_descriptions(changed)) == 0


def test_only_memories_with_a_theme_are_described(wren):
    gallery = rank_memories(wren, top=1000, layers=[5])
    described = MemoryDescriptions(gallery)
    assert 0 < len(described) == sum(has_theme(row) for row in gallery) < 1000
    for row in gallery:
        assert (described.of(row.layer, row.index) == row.description) is has_theme(row)
        assert described.of(row.layer, row.index, negative=True) is None


def test_the_gallery_of_an_index_is_saved_with_it_and_read_the_next_time(tmp_path, monkeypatch):
    lm = lettered("llama")
    index = Index.build(lm, open_corpus(["abcabc " * 20] * 10, segmentation="windows", window=32), tmp_path / "index")
    gallery = index.memories(5)
    saved = json.loads((tmp_path / "index" / FILE).read_text())
    assert [row["memory"] for row in saved["memories"][:5]] == [row.name for row in gallery]
    monkeypatch.setattr("unembed.gallery.rank_memories", None)
    again = Index.open(tmp_path / "index", lm).memories(5)
    assert again.to_dict() == gallery.to_dict()
    assert len(memory_descriptions(lm, tmp_path / "index")) == sum(
        map(has_theme, Index.open(tmp_path / "index").memories(200))
    )


def test_an_atlas_of_another_model_is_refused_and_its_lines_are_best_first(wren, tmp_path):
    lines = [
        Line("L0M1", 0, 1, "positive", "described", "after 'a'", "'b'", test_accuracy=0.7, test_output=0.9),
        Line("-L0M2", 0, 2, "negative", "described", "after 'c'", "'d'", test_accuracy=0.9, test_output=0.9),
    ]
    write_lines(tmp_path / MEMORIES, lines)
    own = json.loads(json.dumps(wren.provenance().to_dict()))
    card = {
        "memories": 2,
        "described": 2,
        "of_verdict": {},
        "of_one_class": 1,
        "drawn": 0,
        "by_layer": {},
        "notes": {},
        "examples": [],
    }
    card |= {"passes": {}, "random": {}, "scores": {}, "provenance": own, "schema": "unembed.atlas.card/1"}
    (tmp_path / "card.json").write_text(json.dumps(card))
    found = memory_descriptions(wren, None, tmp_path)
    assert [row for row in found if row[0] == 0][:2] == [
        (0, 2, "negative", "after 'c': raises 'd'"),
        (0, 1, "positive", "after 'a': raises 'b'"),
    ]
    (tmp_path / "card.json").write_text(json.dumps(card | {"provenance": own | {"model": "another"}}))
    with pytest.raises(InvalidInput, match="it is of another@"):
        memory_descriptions(wren, None, tmp_path)


def test_a_damaged_saved_gallery_is_made_again(tmp_path):
    lm = lettered("llama")
    index = Index.build(lm, open_corpus(["abcabc " * 20] * 10, segmentation="windows", window=32), tmp_path / "index")
    whole = index.memories(5)
    (tmp_path / "index" / FILE).write_text("{")
    with pytest.warns(UserWarning, match=r"memories\.json cannot be used: .*Ranking anew"):
        assert index.memories(5).to_dict() == whole.to_dict()
    assert index.memories(5).to_dict() == whole.to_dict()


def test_a_ranking_anew_replaces_the_saved_gallery(tmp_path):
    lm = lettered("llama")
    index = Index.build(lm, open_corpus(["abcabc " * 20] * 10, segmentation="windows", window=32), tmp_path / "index")
    whole = index.memories(5)
    Gallery.load(tmp_path / "index" / FILE).first(2).save(tmp_path / "index" / FILE)
    assert len(index.memories(5)) == 2
    assert index.memories(5, recompute=True).to_dict() == whole.to_dict() == index.memories(5).to_dict()


def test_no_memory_of_the_different_ones_is_like_a_better_one_and_each_of_the_others_is(wren):
    gallery = Gallery.load(shipped_folder("wren") / FILE)
    kept = gallery.different().rows
    assert list(kept) == [row for row in gallery if row in kept] and len(kept) < len(gallery)
    for place, row in enumerate(gallery):
        better = [one for one in gallery.rows[:place] if one in kept]
        alike = [
            one
            for one in better
            if (row.concept and row.concept == one.concept)
            or (row.pattern and row.pattern == one.pattern)
            or sum(token in one.top_ids for token in row.top_ids) >= ALIKE
        ]
        assert (row in kept) is not bool(alike), row.name


def test_a_varied_gallery_holds_every_memory_once_and_states_its_order(wren, tmp_path):
    gallery = Gallery.load(shipped_folder("wren") / FILE)
    varied, kept = gallery.varied(), gallery.different()
    assert varied.rows[: len(kept)] == kept.rows
    assert sorted(row.name for row in varied) == sorted(row.name for row in gallery)
    scores = [row.score for row in varied.rows[len(kept) :]]
    assert scores == sorted(scores, reverse=True)
    assert (gallery.order, varied.order, kept.order) == ("score", "different first", "score")
    assert "in order of score" in gallery.to_table().title and "different ones first" in varied.to_table().title
    varied.save(tmp_path / FILE)
    assert Gallery.load(tmp_path / FILE).to_dict() == varied.to_dict()


def test_a_gallery_that_is_saved_again_is_read_again(wren, tmp_path):
    rank_memories(wren, top=20, layers=[5]).save(tmp_path / FILE)
    before = len(memory_descriptions(wren, tmp_path))
    assert len(memory_descriptions(wren, tmp_path)) == before > 0
    Gallery.load(tmp_path / FILE).first(0).save(tmp_path / FILE)
    assert len(memory_descriptions(wren, tmp_path)) == 0


def test_described_lines_of_an_atlas_in_the_indexs_folder_come_before_the_gallery(wren, tmp_path):
    of_gallery = memory_descriptions(wren, tmp_path).of(6, 718)
    (tmp_path / ATLAS).mkdir()
    given = {"verdict": "described", "input": "after 'from'", "output": "years ('1923')"}
    lines = [
        Line("L6M718", 6, 718, "positive", **given),
        Line("L2M3", 2, 3, "negative", **given),
        Line("L2M4", 2, 4, "positive", "words below their control", "after 'to'"),
    ]
    write_lines(tmp_path / ATLAS / MEMORIES, lines)
    found = memory_descriptions(wren, tmp_path)
    assert of_gallery is not None
    assert found.of(6, 718) == lines[0].description == "after 'from': raises years ('1923')"
    assert found.of(2, 3, negative=True) == lines[1].description
    assert found.of(2, 3) is None
    assert found.of(2, 4) is None
    assert len(found) == len(memory_descriptions(wren)) + 1


def test_a_damaged_atlas_is_refused_by_name(wren, tmp_path):
    (tmp_path / ATLAS).mkdir()
    (tmp_path / ATLAS / MEMORIES).write_bytes(b"PAR1")
    with pytest.raises(InvalidInput, match=r"memories\.parquet cannot be read"):
        memory_descriptions(wren, tmp_path)

"""The atlas: what colours and names its points, what is stored, and what a query finds on it."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

import unembed
from tests.index.conftest import corpus_of, token_text
from unembed.concepts.token_cleaning import clean
from unembed.errors import OutOfRange
from unembed.gallery import Gallery
from unembed.index import IndexSettings, atlas
from unembed.index.atlas import FILE, KINDS, atlas_matches, atlas_view
from unembed.index.memory_search import search
from unembed.jacobian import lens_identity
from unembed.memories.value_map import value_map
from unembed.models.shipped_models import shipped_folder
from unembed.trace import TraceSettings, trace_view


@pytest.fixture
def own(built, lm, tmp_path):
    """An index whose folder may be written to."""
    return unembed.Index.open(shutil.copytree(built.path, tmp_path / "own"), lm)


def test_tokens_and_densities_are_those_of_the_index(lm, own):
    view = atlas_view(lm, own)
    fractions = own.statistics["active_fraction"]
    for i in range(0, len(view.layer), 7):
        row = own.row(view.layer[i], view.index[i])
        assert view.density is not None
        assert view.density[i] == pytest.approx(fractions[row], abs=1e-5)
        assert [view.tokens[t] for t in view.top[i]] == own.top_tokens(np.array([row]))[0][: len(view.top[i])]
    assert sum(island.size for island in view.islands) == len(view.layer) == view.n_values


def test_without_an_index_the_tokens_are_the_same_and_there_is_no_density(lm, own):
    alone, indexed = atlas_view(lm), atlas_view(lm, own)
    assert alone.density is None
    assert (alone.x, alone.cluster, alone.layer) == (indexed.x, indexed.cluster, indexed.layer)


def test_with_an_index_of_some_layers_or_by_another_lens_tokens_are_read_from_the_weights(lm, tmp_path):
    alone = atlas_view(lm)
    ten = IndexSettings(top=3, top_tokens=10)
    some = unembed.Index.build(lm, corpus_of(), tmp_path / "some", settings=replace(ten, layers=(1,)))
    view = atlas_view(lm, some)
    assert view.density is None and (view.top, view.layer, view.index) == (alone.top, alone.layer, alone.index)
    with pytest.raises(OutOfRange, match="the index was built without this layer"):
        some.memory(0, 1)
    densities = [search(lm, some, name, 1).hits[0].density for name in ("L0M3", "L1M3")]
    assert densities[0] is None and densities[1] is not None
    settings = TraceSettings("The first month", -1, 5, "final", True, (), None)
    traced, _ = trace_view(lm, settings, layer=None, memories=400, token=None, point=None, tracing=lm.trace, index=some)
    assert traced.memories is not None
    assert {row.layer for row in traced.memories.rows} == {0, 1}
    assert {row.layer for row in traced.memories.rows if row.trigger is not None} == {1}
    every = unembed.Index.build(lm, corpus_of(), tmp_path / "every", settings=ten)
    text = [" ".join(np.random.default_rng(0).choice([*"abcdefgh", "The", "first", "month"], 2_000).tolist())]
    lm.fit_lens(text, 4, 8)
    try:
        assert not every.is_read_by(lens_identity(lm)) and atlas_view(lm, every).top == atlas_view(lm).top != alone.top
    finally:
        lm.lens = None
    assert every.is_read_by(None)


def test_the_map_is_stored_with_the_index_and_read_from_there(lm, own, monkeypatch):
    first = atlas_view(lm, own)
    assert (own.path / FILE).is_file()
    monkeypatch.setattr(atlas, "value_map", lambda *_, **__: pytest.fail("computed again"))
    assert atlas_view(lm, own) == first


@pytest.mark.parametrize("how", ["damaged", "other weights"])
def test_a_damaged_or_outdated_map_is_computed_again(lm, own, how):
    first = atlas_view(lm, own)
    path = own.path / FILE
    if how == "damaged":
        path.write_bytes(path.read_bytes()[:200])
    else:
        with np.load(path) as stored:
            arrays = {name: stored[name] for name in stored.files}
        np.savez(path, **{**arrays, "weights": np.array("others"), "position": arrays["position"] * 0})
    assert atlas_view(lm, own).x == first.x


def test_the_kind_is_that_of_half_the_tokens_at_least():
    lm = unembed.load()
    view = atlas_view(lm)
    spelled = {i: KINDS[kind] for i, kind in enumerate(view.kind)}
    assert set(spelled.values()) == set(KINDS)
    digits = [i for i in spelled if spelled[i] == "numbers"]
    for i in digits[:20]:
        tokens = lm.token_strings(unembed.value_readings(lm, 10, layers=[view.layer[i]]).ids[0, view.index[i]].tolist())
        assert sum(t.strip().strip(",.").isdigit() for t in tokens) >= 4, tokens


def test_a_function_word_is_a_whole_word_of_the_list():
    tokens = clean([" the", " beside", " side", " nobody", " body", " thing"])
    expected = ["function words", "function words", "words", "function words", "words", "words"]
    assert [KINDS[atlas._kind(token)] for token in tokens] == expected


def test_the_best_memories_are_those_of_the_gallery():
    lm = unembed.load()
    view = atlas_view(lm)
    assert view.best[0].rank == 1
    first, row = view.best[0], Gallery.load(shipped_folder("wren") / "memories.json")[0]
    assert (view.layer[first.point], view.index[first.point]) == (row.layer, row.index)
    assert (first.name, first.description) == (row.name, row.description)
    assert [one.rank for one in view.best] == sorted(one.rank for one in view.best)


def test_a_memory_described_by_its_negative_coefficients_has_a_minus_sign():
    gallery = Gallery.load(shipped_folder("wren") / "memories.json").first(1)
    row = replace(gallery[0], pole="negative")
    found = atlas._best(replace(gallery, rows=(row,)), np.array([[row.layer, row.index]]))
    assert [one.name for one in found] == [f"-L{row.layer}M{row.index}"]


def test_a_query_finds_all_that_the_search_finds(lm, own):
    word = next(text.strip() for text in token_text(lm) if text.strip().isalpha())
    expected = search(lm, own, word, 10_000)
    found = atlas_matches(lm, own, word)
    assert found.total == expected.total == len(found.memories) > 0
    assert found.memories == [(hit.layer, hit.index) for hit in expected.hits]


def test_islands_are_named_by_what_their_values_promote_more_than_others():
    lm = unembed.load()
    view = atlas_view(lm)
    top = unembed.value_readings(lm, 10).ids
    texts = lm.token_strings(list(range(lm.d_vocab)))
    promoted = [{texts[t] for t in top[view.layer[i], view.index[i]].tolist()} for i in range(len(view.layer))]
    for number, island in enumerate(view.islands):
        for token in island.tokens:
            own = [token in promoted[i] for i in range(len(promoted)) if view.cluster[i] == number]
            everywhere = [token in one for one in promoted]
            assert sum(own) / len(own) > 1.5 * sum(everywhere) / len(everywhere)


def test_the_best_memories_are_on_a_sampled_map(monkeypatch):
    lm = unembed.load()
    whole = atlas_view(lm)
    monkeypatch.setattr(atlas, "value_map", lambda lm, **settings: value_map(lm, 300, **settings))
    sampled = atlas_view(lm)
    assert len(sampled.layer) < 600 < sampled.n_values
    assert [(one.rank, one.description) for one in sampled.best] == [(one.rank, one.description) for one in whole.best]

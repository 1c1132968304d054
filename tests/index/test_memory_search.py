"""A search by words finds the values that steering by the same words would choose from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unembed
from tests.index.conftest import corpus_of, token_text
from unembed.gallery import MemoryDescriptions
from unembed.index import IndexSettings
from unembed.index.memory_search import search
from unembed.language_model import LanguageModel
from unembed.memories.token_ranking import promoting, word_forms
from unembed.memories.values import written_values


def test_search_and_steering_look_for_the_same_forms_of_a_word() -> None:
    wren = unembed.load()
    forms = wren.token_strings(word_forms(wren, "paris"))
    assert " Paris" in forms
    hits = search(wren, None, "paris", 400).hits
    assert {hit.found for hit in hits} <= set(forms)
    steered = promoting(wren, ["paris"], 3)
    assert {(value.layer, value.index) for value in steered} <= {(hit.layer, hit.index) for hit in hits}


def test_a_search_names_the_tokens_that_it_looked_for() -> None:
    wren = unembed.load()
    found = search(wren, None, '-January "·March" unfathomably', 5)
    assert (
        found.forms["January"] == wren.token_strings(word_forms(wren, "January")) and len(found.tokens["January"]) > 1
    )
    assert found.forms[" March"] == [" March"]
    assert found.forms["unfathomably"] == [] and len(found.notes) == 1


def test_an_expression_that_would_take_forever_is_refused() -> None:
    found = search(unembed.load(), None, r"/(\w|\w|\w|\w)*[!?]$/", 5)
    assert "it takes more than 0.5 s on the vocabulary" in found.notes[0] and not found.hits


def test_suppressing_values_have_the_lowest_scores_of_any_form() -> None:
    wren = unembed.load()
    wren.lens = None  # by brute force, values are read as they are
    ids = word_forms(wren, "paris")
    scores = torch.stack([written_values(wren, n) @ wren.weights.W_U for n in range(wren.n_layers)]).detach()
    lowest, form = scores[..., ids].min(dim=-1)  # (layer, memory)
    deviations = lowest / scores.std(dim=-1, correction=0)
    hits = search(wren, None, "-paris", 8).hits
    assert [hit.why for hit in hits] == ["suppresses"] * 8
    for hit, expected in zip(hits, deviations.flatten().sort().values[:8].tolist(), strict=True):
        at = (hit.layer, hit.index)
        assert abs(float(deviations[at]) - expected) < 1e-4
        assert abs((hit.score or 0.0) - float(lowest[at])) < 1e-5
        assert hit.found == wren.token_strings([ids[int(form[at])]])[0]


@pytest.mark.parametrize(("text", "sign"), [("{}", 1.0), ("-{}", -1.0)])
def test_an_ungated_memory_is_not_found_by_words_that_it_only_moves_the_other_way(
    lm: LanguageModel, text: str, sign: float
) -> None:
    """Its coefficient has one sign, so a memory that lowers a word never promotes it."""
    word = next(one.strip() for one in token_text(lm) if one.strip().isalpha())
    hits = [hit for hit in search(lm, None, text.format(word), 1000).hits if hit.why in ("promotes", "suppresses")]
    read = lm.weights.W_U[:, word_forms(lm, word)]
    scores = sign * torch.cat([written_values(lm, n) @ read for n in range(lm.n_layers)])
    assert len(hits) == int((scores > 0).any(dim=1).sum()) < len(scores)
    assert all(hit.pole == "positive" and sign * (hit.score or 0.0) > 0 for hit in hits)


def test_the_rank_of_a_found_token_is_its_place_in_the_values_own_list() -> None:
    wren = unembed.load()
    hits = search(wren, None, "paris", 30).hits
    ranked = [hit for hit in hits if hit.rank is not None]
    assert len(ranked) > 3
    for hit in ranked:
        ids, _ = wren.values.top(hit.layer, hit.index, 100, bottom=hit.pole == "negative")
        assert wren.token_strings(ids)[(hit.rank or 0) - 1] == hit.found


def test_a_memory_of_a_topic_is_found_by_each_of_its_words_at_its_sign(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """A value that lowers ten words alike, as one about cities does, is found by one that the index does not list."""
    lm = unembed.load(folders["llama"])
    words = [i for i, text in enumerate(token_text(lm)) if text.strip().isalpha()][:10]
    direction = lm.weights.W_U[:, words].sum(dim=1)
    with torch.no_grad():
        lm.weights.W_out[1][5] = -direction
    settings = IndexSettings(top_tokens=4)
    index = unembed.Index.build(lm, corpus_of("windows"), tmp_path / "index", top=2, settings=settings)
    read = lm.values.top(1, 5, 30, bottom=True)[0].tolist()
    late = next(i for i in read[4:] if i in words)
    text = lm.token_strings([late])[0].replace(" ", "·")
    assert lm.single_token(lm.token_strings([late])[0]) not in index.suppressed[0][index.row(1, 5)]
    for one in (index, None):
        found = [hit for hit in search(lm, one, f'"{text}"', 1000).hits if (hit.layer, hit.index) == (1, 5)]
        assert [(hit.pole, hit.rank) for hit in found] == [("negative", read.index(late) + 1)]
    shares = index.firing_shares
    assert shares is not None
    densities = {(hit.layer, hit.index, hit.pole): hit.density for hit in search(lm, index, f'"{text}"', 1000).hits}
    assert {pole for _, _, pole in densities} == {"positive", "negative"}
    for (layer, i, pole), density in densities.items():
        assert density == shares[pole][index.row(layer, i)], "the share of tokens with the sign of the hit"


def test_descriptions_that_contain_a_word_come_first_and_only_whole_words_count() -> None:
    wren = unembed.load()
    described = MemoryDescriptions(of_atlas={(3, 5, "positive"): "after 'capital'", (2, 1, "positive"): "capitals"})
    hits = search(wren, None, "Capital", 5, described=described).hits
    assert (hits[0].layer, hits[0].index, hits[0].why, hits[0].found) == (3, 5, "description", "after 'capital'")
    assert all(hit.why == "promotes" for hit in hits[1:])


def test_heads_whose_role_or_relation_has_the_word_come_before_memories() -> None:
    heads = {(3, 5): "country to capital: 40 % of the pairs, by its weights", (2, 1): "induction"}
    described = MemoryDescriptions(of_atlas={(3, 5, "positive"): "after 'capital'"}, heads=heads)
    hits = search(unembed.load(), None, "capital", 3, described=described).hits
    assert [(hit.of, hit.layer, hit.index, hit.why) for hit in hits[:2]] == [
        *(("head", 3, 5, "description"), ("memory", 3, 5, "description"))
    ]
    assert hits[0].found == heads[3, 5] and hits[2].of == "memory"


def test_words_near_in_meaning_have_the_nearest_embeddings() -> None:
    wren = unembed.load()
    near = search(wren, None, "january", 1).near
    rows = wren.weights.W_E.detach() - wren.weights.W_E.detach().mean(dim=0)
    rows = rows / rows.norm(dim=1, keepdim=True)
    cosine = rows @ rows[word_forms(wren, "january")].mean(dim=0)
    found = [float(cosine[wren.single_token(text)]) for text in near]
    assert found == sorted(found, reverse=True) and len({" March", " April", " July", " December"} & set(near)) >= 3

"""A search by words finds the values that steering by the same words would choose from."""

from __future__ import annotations

import torch

import unembed
from unembed.index.memory_search import search
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
    scores = torch.stack([written_values(wren, n) @ wren.weights.W_U[:, ids] for n in range(wren.n_layers)]).detach()
    lowest = scores.amin(dim=-1)  # (layer, memory)
    hits = search(wren, None, "-paris", 8).hits
    assert [hit.why for hit in hits] == ["suppresses"] * 8
    for hit, expected in zip(hits, lowest.flatten().sort().values[:8].tolist(), strict=True):
        assert abs((hit.score or 0.0) - expected) < 1e-5
        assert abs(float(lowest[hit.layer, hit.index]) - expected) < 1e-5

"""Values found by the words that they promote, against a search through all scores."""

from __future__ import annotations

import math

import pytest
import torch

import unembed
from unembed.errors import InvalidInput
from unembed.memories.token_ranking import LISTED, firing, promoting, word_forms, words_of


@pytest.fixture(scope="module")
def wren():
    lm = unembed.load("wren")
    lm.lens = None  # by brute force, values are read as they are
    return lm


def test_promoting_is_the_brute_force_search(wren):
    ids = torch.tensor(word_forms(wren, "war"))
    scores = torch.stack([wren.weights.W_out[n] @ wren.weights.W_U for n in range(wren.n_layers)])
    scores[..., wren.unlisted] = -torch.inf
    # How many tokens score higher than the best form, for every value.
    best, _ = scores[..., ids].max(-1)
    rank = (scores > best[..., None]).sum(-1) + 1
    expected = torch.where(rank <= LISTED, best, -torch.inf).flatten().topk(4)
    found = promoting(wren, ["war"], 4)
    assert [p.layer * wren.d_mlp + p.index for p in found] == expected.indices.tolist()
    assert [p.rank for p in found] == rank.flatten()[expected.indices].tolist()
    for p, score in zip(found, expected.values.tolist(), strict=True):
        assert math.isclose(p.score, score, rel_tol=1e-4)
    assert all(p.token.strip().lower() == "war" for p in found)


def test_words_that_are_no_token_are_refused(wren):
    with pytest.raises(InvalidInput, match="no form of it is a single token"):
        promoting(wren, ["antidisestablishmentarianism"])
    assert words_of(" safe, thank,,") == ["safe", "thank"]


def test_firing_shows_the_highest_prefix(wren):
    text = "The old king went to war with his brother, and the war went on for years."
    memory = (3, 776)
    m = wren.run(text, "coefficients")["coefficients"][3, 0, :, 776]
    last = wren.token_strings(wren.encode(text)[0])[int(m.argmax())]
    shown = firing(wren, [memory], [text])[memory]
    assert shown[0].endswith(f"[{last}]") if float(m.max()) > 0 else shown == ()

"""Words that a head raises: the shipped model's entries against its own tensors."""

from __future__ import annotations

import pytest
import torch

import unembed
from tests.conftest import tiny
from unembed.attention.text.output_words import MIN_COUNT, between_words, raised_tokens
from unembed.attention.text.skip_trigrams import frequent_tokens
from unembed.attention.text.token_vectors import token_vectors
from unembed.names import HeadAddress
from unembed.results import visible


def test_entries_are_the_heads_output_for_a_token_alone_through_the_unembedding() -> None:
    lm, place = unembed.load(), HeadAddress(5, 1)
    circuits = unembed.circuits(lm)
    found = raised_tokens(circuits, place, "folded", 5)
    assert found is not None and len(found.sources) == len(found.raises) == len(found.entries) == 5
    ids = frequent_tokens(lm, None, MIN_COUNT)
    ids = ids[~lm.unlisted[ids]]
    vectors = token_vectors(lm, ids, [5], "folded")[5].double()
    norm = lm.structure.final_norm
    assert norm is not None and norm.gain is not None
    full = vectors @ circuits.ov(*place, "folded").dense().double()
    logits = full @ norm.gain.double().diag() @ lm.weights.W_U.double()
    logits = (logits - logits.mean(1, keepdim=True))[:, ids]
    above = logits - logits.mean(0)
    texts = lm.token_strings(ids)
    shown = [visible(text) for text in texts]
    for source, raises, entry in zip(found.sources, found.raises, found.entries, strict=True):
        at, to = texts.index(source), shown.index(raises.split(" ")[0])
        assert entry == pytest.approx(float(above[at, to]), rel=1e-3)
        assert texts[at].strip().casefold() != texts[to].strip().casefold()
    assert found.entries == sorted(found.entries, reverse=True)


def test_entries_of_one_word_are_left_out_and_a_column_has_no_mean() -> None:
    entries = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 9.0], [5.0, 2.0, 3.0]])
    found = between_words(entries, torch.tensor([0, 1, 0]))
    assert found[0, 0] == found[0, 2] == found[2, 0] == -torch.inf
    assert found[0, 1] == 0.0 and found[1, 0] == 0.0 and found[1, 2] == 4.0


def test_a_model_without_a_tokenizer_has_no_such_words() -> None:
    lm = tiny("llama")
    assert raised_tokens(unembed.circuits(lm), HeadAddress(1, 0), "folded", 5) is None

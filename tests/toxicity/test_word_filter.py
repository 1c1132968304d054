"""The word filter against brute force over texts."""

from __future__ import annotations

import itertools
import re

import pytest
import torch

import unembed
from unembed.errors import InvalidInput
from unembed.toxicity.word_filter import WordFilter, read_words, token_bytes

WORDS = ["king", "old man", "the sea", "cats"]


@pytest.fixture(scope="module")
def wren():
    return unembed.load("wren")


def holds(text: str, words: list[str], end: int) -> bool:
    """Whether a banned word ends after `end`, at word boundaries."""
    for word in words:
        for m in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", re.sub(r"\s", " ", text.lower())):
            if m.end() > end:
                return True
    return False


@pytest.mark.parametrize("text", ["The ki", "An old", "He liked c", "thinki", "near the s"])
def test_the_filter_bans_what_completes_a_word_and_nothing_else(wren, text):
    ids = wren.encode(text)
    shown = WordFilter(WORDS, wren.tokenizer)(ids, torch.zeros(1, wren.d_vocab))[0]
    banned = set(torch.isinf(shown).nonzero()[:, 0].tolist())
    special = set(wren.tokenizer.all_special_ids)
    before = wren.decode(ids[0])
    strings = wren.token_strings(range(wren.d_vocab))
    for i in range(wren.d_vocab):
        if i in special or "\\x" in strings[i]:
            continue
        assert (i in banned) == holds(before + strings[i], WORDS, len(before)), (text, strings[i])


def test_every_cut_and_case_of_a_word_is_caught(wren):
    """However the word is cut into tokens, its last piece is banned."""
    filter_ = WordFilter(["king"], wren.tokenizer)
    ids_of = {}
    for i, b in enumerate(token_bytes(wren.tokenizer)):
        ids_of.setdefault(b, []).append(i)
    caught = 0
    for cut in itertools.product([False, True], repeat=3):
        pieces, word = [], b" king"
        bounds = [0, *(k + 2 for k in range(3) if cut[k]), len(word)]
        pieces = [word[a:b] for a, b in itertools.pairwise(bounds)]
        if all(p in ids_of for p in pieces):
            for way in itertools.product(*(ids_of[p] for p in pieces)):
                scores = filter_(torch.tensor([[5, *way[:-1]]]), torch.zeros(1, wren.d_vocab))
                assert torch.isinf(scores[0, way[-1]])
                caught += 1
    assert caught >= 4


def test_a_filtered_generation_never_contains_the_words(wren):
    words = ["the", "she", "he", "was"]
    prompts = ["Once upon a time there", "The king and his son"]
    filter_ = WordFilter(words, wren.tokenizer)
    for options in ({}, {"seed": 1}, {"num_beams": 3}):
        texts = wren.generate(prompts, max_new_tokens=25, logits_processor=[filter_], **options)
        for prompt, text in zip(prompts, texts, strict=True):
            assert not re.findall(r"\b(the|she|he|was)\b", text[len(prompt) :].lower())
    assert re.findall(
        r"\b(the|she|he|was)\b", wren.generate(prompts[0], max_new_tokens=25)[0][len(prompts[0]) :].lower()
    )


def test_words_come_from_a_file(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("one\n\n two \n")
    assert read_words(path) == ["one", "two"]
    path.write_text("one\ntwo\n", encoding="utf-8-sig")  # as some editors save it
    assert read_words(path) == ["one", "two"]
    with pytest.raises(InvalidInput):
        read_words(tmp_path / "none.txt")

"""Tokens cleaned: words, pieces, numbers and punctuation."""

from __future__ import annotations

from unembed.concepts.token_cleaning import clean


def test_words_pieces_numbers_and_punctuation_are_distinguished():
    tokens = [" should", "should", "ation", " Paris", "Paris", "le", " 1984", "!?", " 3rd", "\n", " a1b", " don't"]
    kinds = [token.kind for token in clean(tokens)]
    assert kinds == [
        *("word", "word", "piece", "word", "word", "piece", "number", "punctuation", "number", "other", "other", "word")
    ]
    assert [token.word for token in clean(tokens)][:5] == ["should", "should", None, "paris", "paris"]
    assert clean(tokens)[3].capitalised


def test_without_spaces_before_tokens_every_token_is_a_word():
    assert [token.word for token in clean(["the", "dog", "runs"])] == ["the", "dog", "runs"]

"""Words are named where they are whole and frequent; a class is named where all words are in it and few others are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unembed.atlas.named_words import NAMED, OFTEN, RISE_MOST, NameableWords, NamedTokens
from unembed.concepts.token_classes import Classes

YEARS = [f" {year}" for year in range(1700, 1760)]
_TEXT = """
house river stone music table garden winter summer doctor letter window market bridge forest island
castle engine horse sheep bread water paper field cloud storm metal glass chair church school king
queen army ship coat shoe gold silver copper tree leaf root flower bird fish wolf bear lion tiger
mouse road street town city
"""
WORDS = _TEXT.split()
PIECES = [f"{chr(97 + i)}qz" for i in range(26)]
VOCABULARY = YEARS + [f" {word}" for word in WORDS] + PIECES + [f" {n}" for n in range(200)]
FIRST_WORD, FIRST_PIECE = len(YEARS), len(YEARS) + len(WORDS)


@pytest.fixture(scope="module")
def words() -> NameableWords:
    counts = np.full(len(VOCABULARY), OFTEN)
    counts[FIRST_WORD + 6] = OFTEN - 1
    return NameableWords(Classes.build(VOCABULARY), counts)


def test_only_frequent_whole_words_numbers_and_punctuation_are_named(words: NameableWords) -> None:
    found = set(words.tokens.tolist())
    assert FIRST_WORD + 6 not in found
    assert not found & set(range(FIRST_PIECE, FIRST_PIECE + len(PIECES)))
    assert set(range(FIRST_WORD)) <= found


def test_the_words_that_rise_most_are_those_of_a_full_sort(words: NameableWords) -> None:
    rises = torch.stack([torch.randperm(len(VOCABULARY), generator=torch.Generator().manual_seed(i)) for i in (0, 1)])
    whole = set(words.tokens.tolist())
    expected = [[t for t in row.argsort(descending=True).tolist() if t in whole][:RISE_MOST] for row in rises]
    assert words.rising(rises.float()) == expected
    assert len(words.rising(rises.float(), most=len(VOCABULARY))[0]) == len(whole)


def test_a_class_is_named_if_all_words_are_in_it_and_few_others_are(words: NameableWords) -> None:
    years = [7, 1, 2, 3, 4, 5, 6, 0]
    assert words.named(years) == NamedTokens(tuple(years), "years")
    assert words.named([*years[:-1], FIRST_WORD + 1]).name != "years"
    assert words.named(years[:2]).name is None  # one of thirty random pairs is of two years
    assert words.named(list(range(20))).tokens == tuple(range(NAMED))

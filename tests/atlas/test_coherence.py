"""Tokens are named where they share something: planted neighbours, a planted class, a letter; rarely at random."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unembed.atlas.coherence import LISTED, NAMED, OFTEN, RISE_MOST, NamedTokens, SharedTokens
from unembed.concepts.token_classes import Classes

D_MODEL, SEED = 64, 0
YEARS = [f" {year}" for year in range(1700, 1760)]
_TEXT = """
house river stone music table garden winter summer doctor letter window market bridge forest island
castle engine horse sheep bread water paper field cloud storm metal glass chair church school king
queen army ship coat shoe gold silver copper tree leaf root flower bird fish wolf bear lion tiger
mouse road street town city
"""
WORDS = _TEXT.split()
_ALIKE_TEXT = "sand send sound sun sea silk salt soap soup seed skin snow song sky"
ALIKE = _ALIKE_TEXT.split()
PIECES = [f"{chr(97 + i)}qz" for i in range(26)]
VOCABULARY = YEARS + [f" {word}" for word in WORDS] + PIECES + [f" {n}" for n in range(200)]
FIRST_WORD, FIRST_PIECE = len(YEARS), len(YEARS) + len(WORDS)


@pytest.fixture(scope="module")
def W_U() -> torch.Tensor:
    rows = torch.randn(len(VOCABULARY), D_MODEL, generator=torch.Generator().manual_seed(SEED))
    rows[FIRST_WORD : FIRST_WORD + 6] += 3 * torch.randn(D_MODEL, generator=torch.Generator().manual_seed(1))
    return rows


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def shared(W_U: torch.Tensor, request: pytest.FixtureRequest) -> SharedTokens:
    counts = np.full(len(VOCABULARY), OFTEN)
    counts[FIRST_WORD + 6] = OFTEN - 1
    return SharedTokens(Classes.build(VOCABULARY), counts, W_U.to(request.param))


def rises(tokens: list[int]) -> torch.Tensor:
    """Rank these tokens first, in this order."""
    found = torch.full((1, len(VOCABULARY)), -1.0)
    found[0, tokens] = torch.arange(len(tokens), 0, -1).float()
    return found


def test_only_frequent_whole_words_numbers_and_punctuation_are_named(shared: SharedTokens) -> None:
    words = set(shared.words.tolist())
    assert FIRST_WORD + 6 not in words
    assert not words & set(range(FIRST_PIECE, FIRST_PIECE + len(PIECES)))
    assert set(range(FIRST_WORD)) <= words


def test_only_words_that_rise_most_elsewhere_too_are_kept(shared: SharedTokens) -> None:
    named = NamedTokens((0, 1, 2, 3, 5), "years")
    others = list(range(10, 10 + RISE_MOST - 3))
    top = [FIRST_PIECE, *others, 1, 3, 5, 0, 2]  # a piece of a word takes no place
    assert shared.that_still_rise(named, rises(top)[0]) == NamedTokens((1, 3, 5), "years")
    assert shared.that_still_rise(named, rises([others[0], *others, 30, 1, 3, 5])[0]) is None  # two are left
    assert shared.that_still_rise(NamedTokens((*range(6),), None), rises(top)[0]) is None  # three of six


def test_planted_neighbours_are_named_without_the_rest_of_the_list(shared: SharedTokens) -> None:
    near = list(range(FIRST_WORD, FIRST_WORD + 6))
    others = list(range(LISTED - len(near)))  # years: their class is no name of the neighbours
    (found,) = shared.named(rises([others[0], *near, *others[1:]]))
    assert found is not None and found.name is None
    assert set(near) <= set(found.tokens) and len(found.tokens) <= len(near) + 2


def test_a_planted_class_is_named_by_its_name(shared: SharedTokens) -> None:
    others = list(range(FIRST_WORD + 20, FIRST_WORD + 24))
    (found,) = shared.named(rises([*range(LISTED - len(others)), *others]))
    assert found == NamedTokens(tuple(range(NAMED)), "years")


def test_words_that_begin_alike_are_named_by_their_letter() -> None:
    vocabulary = [f" {word}" for word in (*ALIKE, *WORDS)]
    rows = torch.randn(len(vocabulary), D_MODEL, generator=torch.Generator().manual_seed(SEED))
    shared = SharedTokens(Classes.build(vocabulary), np.full(len(vocabulary), OFTEN), rows)
    others = [i for i, word in enumerate(vocabulary) if word[1] != "s"]
    order = torch.full((1, len(vocabulary)), -1.0)
    order[0, [*range(len(ALIKE)), *others[: LISTED - len(ALIKE)]]] = torch.arange(LISTED, 0, -1).float()
    whole = [i for i in range(len(ALIKE)) if i in shared.words]
    assert shared.named(order) == [NamedTokens(tuple(whole[:NAMED]), "words that begin with 's'")]


def test_lists_of_random_directions_seldom_share_something(shared: SharedTokens, W_U: torch.Tensor) -> None:
    """A quarter by neighbours, 15 % by a class, and a rest by a letter, up to the error of 400 draws."""
    directions = torch.randn(400, D_MODEL, generator=torch.Generator().manual_seed(9))
    rows = W_U - W_U[shared.words].mean(dim=0)
    found = shared.named(directions @ (rows / rows.norm(dim=1, keepdim=True)).T)
    assert sum(one is not None for one in found) / len(found) < 0.25 + 0.15 + 0.05


def test_a_vocabulary_with_few_words_names_nothing(W_U: torch.Tensor) -> None:
    classes = Classes.build(VOCABULARY[:LISTED])
    shared = SharedTokens(classes, np.full(LISTED, OFTEN), W_U[:LISTED])
    assert shared.named(torch.rand(2, LISTED)) == [None, None]

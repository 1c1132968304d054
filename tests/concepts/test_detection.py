"""Concepts in lists of tokens: the classes, the probabilities against SciPy, and what chance gives."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom

from unembed.concepts.detection import find_concepts, log10_tail
from unembed.concepts.token_classes import MIN_TOKENS, Classes


def words(text: str) -> list[str]:
    return text.split()


MONTHS = words("January February March April May June July August September October November December")
ANIMALS = words("dog cat horse cow sheep wolf lion tiger bear fox")
PRONOUNS = words("he she they we him her them us")
NAMES = words("John Mary Peter Susan Thomas Alice")
OTHERS = words(
    "table window idea strange purple under quickly chemistry music river of walking iron seven 1984 1990 2001 1850 "
    "running jumping singing thing engine bread paper law water wall honest brave round politics and happiness sleep"
)
PIECES = ["ation", "ing", "ness", "xq", ",", ".", "!", ";", *(f" zz{i}x" for i in range(60))]
VOCABULARY = [f" {w}" for w in [*MONTHS, *ANIMALS, *PRONOUNS, *NAMES, *OTHERS]] + PIECES


@cache
def classes() -> Classes:
    """The classes of the vocabulary, built by the first test that needs them: it takes seconds."""
    return Classes.build(VOCABULARY)


def ids(given: list[str]) -> list[int]:
    return [VOCABULARY.index(f" {w}") for w in given]


def found_in(given: list[str]) -> dict[str, Concept]:
    filler = [i for i, t in enumerate(VOCABULARY) if t.startswith(" zz")]
    row = (ids(given) + filler)[:30]
    return {c.name: c for c in find_concepts(classes(), np.array([row]))[0]}


@pytest.mark.parametrize(
    ("given", "kind", "evidence"),
    [
        (MONTHS[:8], "semantic", "WordNet"),
        (ANIMALS[:8], "semantic", "WordNet"),
        (PRONOUNS, "syntactic", "closed class"),
        (NAMES, "names", "given names"),
        (["1984", "1990", "2001", "1850"], "semantic", "digits"),
    ],
)
def test_a_planted_concept_is_found_with_its_tokens(given, kind, evidence):
    best = next(iter(found_in(given).values()))
    assert best.kind == kind
    assert evidence in best.evidence
    assert set(best.members) == set(ids(given))
    assert best.score > 0


def test_three_tokens_are_not_a_concept_and_two_concepts_are_listed_side_by_side():
    assert not [c for c in found_in(MONTHS[:3]).values() if set(c.members) <= set(ids(MONTHS[:3]))]
    both = found_in(MONTHS[:6] + ANIMALS[:6])
    members = [set(c.members) for c in both.values()]
    assert set(ids(MONTHS[:6])) in members
    assert set(ids(ANIMALS[:6])) in members


@given(st.integers(1, 200), st.data())
def test_the_tail_is_scipys(population, data):
    marked, drawn = data.draw(st.integers(0, population)), data.draw(st.integers(0, population))
    least = data.draw(st.integers(0, 30))
    ours = log10_tail(population, marked, drawn, least)
    theirs = hypergeom(population, marked, drawn).sf(least - 1)
    assert 10**ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def test_each_score_is_the_tail_times_the_number_of_classes():
    for concept in found_in(MONTHS + ANIMALS[:5]).values():
        tail = hypergeom(len(VOCABULARY), concept.class_size, 30).sf(len(concept.members) - 1)
        assert concept.score == pytest.approx(-np.log10(tail * len(classes().names)), abs=1e-9)
        assert len(concept.members) >= MIN_TOKENS


def test_random_lists_hold_fewer_concepts_than_the_bound():
    generator = torch.Generator().manual_seed(0)
    rows = torch.stack([torch.randperm(len(VOCABULARY), generator=generator)[:30] for _ in range(400)])
    found = find_concepts(classes(), rows, max_expected=0.5)
    assert sum(map(len, found)) / 400 < 0.5
    # and a stricter bound finds a part of what a looser one finds
    strict = find_concepts(classes(), rows, max_expected=0.01)
    assert all({c.name for c in a} <= {c.name for c in b} for a, b in zip(strict, found, strict=True))


def test_neighbours_in_the_embedding_are_a_kind_of_their_own():
    clusters = [0] * 4 + list(range(1, len(VOCABULARY) - 3))
    classes = Classes.build(VOCABULARY).with_neighbours(np.array(clusters))
    concepts = find_concepts(classes, np.array([list(range(4)) + list(range(60, 67))]))[0]
    assert any(c.kind == "embedding" and c.members == (0, 1, 2, 3) and not c.counted for c in concepts)

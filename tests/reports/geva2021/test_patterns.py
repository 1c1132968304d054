"""Patterns against SciPy and cases made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from unembed.concepts.token_classes import Classes
from unembed.reports.geva2021 import patterns


def test_tails_are_those_of_the_binomial_distribution() -> None:
    for n, p, k in ((25, 0.04, 3), (25, 0.5, 20), (10, 0.001, 1), (4, 0.3, 0)):
        assert patterns.tail(n, p, k) == pytest.approx(float(stats.binom.sf(k - 1, n, p)), rel=1e-10)


def random_prefixes(n: int, seed: int = 0, length: int = 12) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(100, 1000, (n, length)))


def test_shared_ends_and_phrases_are_found_with_the_prefixes_that_have_them() -> None:
    finder = patterns.Finder.of(random_prefixes(500), None, ())
    prefixes = random_prefixes(25, 1)
    for i in (2, 5, 7, 11):
        prefixes[i][-2:] = (7, 8)
    for i, at in ((0, 1), (1, 4), (9, 6)):
        prefixes[i][at : at + 3] = (11, 12, 13)
    found = finder.patterns(prefixes)
    assert {(p.what, p.tokens, p.members) for p in found} == {
        ("ends with", (7, 8), frozenset({2, 5, 7, 11})),
        ("contains", (11, 12, 13), frozenset({0, 1, 9})),
    }
    shares = dict(patterns.shares(found, 25))
    assert shares == {"shallow": 7 / 25, "both": 0.0, "semantic": 0.0, "none": 18 / 25}


def test_what_random_prefixes_share_as_often_is_no_pattern() -> None:
    common = random_prefixes(500)
    for prefix in common[::3]:
        prefix[-1] = 5
    finder = patterns.Finder.of(common, None, ())
    prefixes = random_prefixes(25, 1)
    for i in range(8):
        prefixes[i][-1] = 5
    assert finder.patterns(prefixes) == []
    for i in range(25):
        prefixes[i][-1] = 5
    assert [p.tokens for p in finder.patterns(prefixes)] == [(5,)]
    assert patterns.Finder.of(random_prefixes(500), None, ()).patterns(prefixes[:2]) == []


WORDS = ["dog", "cat", "horse", "lion", "tiger", "wolf", "table", "quickly", "seven", "of", "the", "run", "green"]


def test_a_meaning_needs_several_words_that_share_it() -> None:
    vocabulary = [f" {word}" for word in WORDS] + [f" zzq{i}" for i in range(1000)]
    classes = Classes.build(vocabulary)
    finder = patterns.Finder.of(random_prefixes(500), classes, ("semantic",))
    animals = [vocabulary.index(f" {word}") for word in ("dog", "cat", "horse", "lion", "tiger", "wolf")]
    prefixes = random_prefixes(25, 1)
    for i, animal in enumerate(animals):
        prefixes[3 * i][5] = animal
    (pattern,) = finder.patterns(prefixes)
    assert pattern.kind == "semantic" and pattern.members == frozenset(range(0, 18, 3))
    assert "WordNet" in patterns.described(pattern, classes, lambda ids: [vocabulary[i] for i in ids])
    same = random_prefixes(25, 1)
    for i in range(6):
        same[3 * i][-1] = animals[0]
    assert [p.kind for p in finder.patterns(same)] == ["shallow"]

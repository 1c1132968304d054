"""Context vectors of a made text: two groups of words in contexts of their own, and frequent words that go anywhere."""

from __future__ import annotations

import numpy as np
import pytest

from unembed.gallery.context_vectors import ContextVectors, coherence

N = 200
GROUP, OTHER, ANYWHERE = np.arange(20, 40), np.arange(40, 60), np.arange(60, 160)


@pytest.fixture(scope="module")
def contexts() -> ContextVectors:
    rng = np.random.default_rng(0)
    pieces = []
    for _ in range(6000):
        kind = rng.integers(3)
        word = rng.choice((GROUP, OTHER, ANYWHERE)[kind])
        # Ten words stand beside the first group, ten beside the second; the rest stand beside any of both.
        sides = (np.arange(0, 10), np.arange(10, 20), np.arange(0, 20))[kind]
        pieces.append([rng.choice(sides), word, rng.choice(sides)])
    return ContextVectors.count(np.concatenate(pieces), np.ones(N, dtype=bool), dim=16)


def test_words_of_the_same_contexts_are_more_coherent_than_words_of_their_frequency(contexts):
    mixed = np.concatenate([GROUP[:5], OTHER[:5]])
    found = coherence(contexts, np.stack([GROUP[:10], OTHER[5:15], mixed]), seed=1)
    assert (found.p[:2] <= 0.01).all() and found.size[:2].min() > 0.2
    assert found.size[2] < found.size[:2].min() / 2


def test_random_lists_are_seldom_called_coherent(contexts):
    rng = np.random.default_rng(2)
    lists = np.stack([rng.choice(ANYWHERE, 10, replace=False) for _ in range(200)])
    assert (coherence(contexts, lists).p <= 0.05).mean() < 0.12


def test_lists_that_stay_significant_do_not_depend_on_those_given_up(contexts):
    rng = np.random.default_rng(3)
    lists = np.stack([*(rng.choice(ANYWHERE, 10, replace=False) for _ in range(50)), GROUP[:10], OTHER[:10]])
    whole, judged = coherence(contexts, lists), coherence(contexts, lists, only_below=0.01)
    significant = whole.p <= 0.01
    assert significant[-2:].all() and significant.sum() < 10
    for one, other in ((judged.p, whole.p), (judged.size, whole.size), (judged.similarity, whole.similarity)):
        assert np.array_equal(one[significant], other[significant])
    assert (judged.p[~significant] > 0.01).all() and np.isnan(judged.similarity[:50]).any()


def test_similarity_is_the_mean_cosine_of_all_pairs(contexts):
    ids = np.array([[20, 45, 70, 99, 21, 150]])
    rows = contexts.vectors[ids[0]].astype(np.float64)
    cosines = rows @ rows.T
    assert np.allclose(np.diag(cosines), 1)
    expected = cosines[~np.eye(len(rows), dtype=bool)].mean()
    assert coherence(contexts, ids, draws=3).similarity[0] == pytest.approx(expected, abs=1e-5)


def test_tokens_without_a_vector_are_ignored_and_short_lists_are_not_judged(contexts):
    padded = coherence(contexts, np.array([[20, 21, 22, 23, 24, 190, -1]]), draws=3)
    plain = coherence(contexts, np.array([[20, 21, 22, 23, 24]]), draws=3)
    assert padded.similarity[0] == pytest.approx(plain.similarity[0])
    short = coherence(contexts, np.array([[20, 21, 22, 23, 190]]), draws=3)
    assert np.isnan(short.similarity[0]) and short.p[0] == 1 and short.size[0] == 0


def test_a_text_that_is_too_short_gives_no_vectors():
    contexts = ContextVectors.count(np.arange(30) % 7, np.ones(10, dtype=bool))
    assert not contexts.known.any()

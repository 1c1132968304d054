"""The score of what holds together, on texts whose themes are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tools.value_coherence import Coherence, contexts

FIRST, N_THEMES, N_WORDS = 257, 6, 30
D_VOCAB = FIRST + N_THEMES * N_WORDS


@pytest.fixture(scope="module")
def text() -> np.ndarray:
    """Sentences of ten words of one theme each; low numbers of a theme are frequent."""
    rng = np.random.default_rng(0)
    themes = rng.integers(0, N_THEMES, size=6000)
    words = np.minimum(rng.geometric(0.08, size=(6000, 10)) - 1, N_WORDS - 1)
    return (FIRST + themes[:, None] * N_WORDS + words).ravel()


@pytest.fixture(scope="module")
def coherence(text) -> Coherence:
    return Coherence(contexts(text, D_VOCAB, dims=20), np.bincount(text, minlength=D_VOCAB), least=10)


def test_words_of_one_theme_hold_together_and_frequent_words_of_all_themes_do_not(coherence):
    theme = FIRST + np.arange(10)
    frequent = FIRST + np.concatenate([N_WORDS * np.arange(N_THEMES), N_WORDS * np.arange(4) + 1])
    assert coherence(theme) > 0.3
    assert abs(coherence(frequent)) < 0.15
    assert coherence(theme) > coherence(frequent) + 0.3


def test_a_vector_that_promotes_a_theme_scores_above_random_vectors(coherence):
    unembedding = torch.eye(D_VOCAB)
    theme = torch.zeros(D_VOCAB)
    theme[FIRST : FIRST + 20] = 1.0
    random = torch.randn(50, D_VOCAB, generator=torch.Generator().manual_seed(0))
    scores = coherence.of_vectors(torch.cat([theme[None], random]), unembedding, top=10)
    assert scores[0] > np.quantile(scores[1:], 0.95)


def test_tokens_that_hardly_occur_and_bytes_are_left_out(text):
    counts = np.bincount(text, minlength=D_VOCAB)
    counts[5] = 10**6  # a byte
    counts[FIRST] = 3
    coherence = Coherence(contexts(text, D_VOCAB, dims=20), counts, least=10)
    assert not coherence.may_show[5]
    assert not coherence.may_show[FIRST]

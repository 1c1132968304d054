"""Similarity of words against PyTorch."""

from __future__ import annotations

import numpy as np
import torch

from tests.sweeps.recorder import lettered
from unembed.reports.geva2021 import word_similarity


def test_similar_words_are_closer_than_others() -> None:
    assert word_similarity.lin("dog", "dogs") == 1.0 == word_similarity.lin("people", "people")
    near, far = word_similarity.lin("dog", "cat"), word_similarity.lin("dog", "idea")
    assert near is not None and far is not None and near > word_similarity.RELATED > far
    assert word_similarity.lin("dog", "qqqqq") is None
    lm = lettered("gpt2", torch.float64)
    w = lm.weights.W_E
    ids = np.array([3, 4]), np.array([10, 11])
    expected = [float(torch.cosine_similarity(w[a], w[b], dim=0)) for a, b in zip(*ids, strict=True)]
    np.testing.assert_allclose(word_similarity.cosines(lm, *ids), expected, rtol=0, atol=1e-6)
    counts = np.arange(lm.d_vocab)
    cosine = np.array([-1.1, 1.1])
    assert word_similarity.share_of_closer(lm, *ids, cosine, counts, 0).tolist() == [0.0, 1.0]
    share = word_similarity.share_of_closer(lm, *ids, np.array(expected), counts, 0)
    assert ((share >= 0) & (share <= 1)).all()

"""How large the coefficients of a memory usually are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch


def test_coefficients_of_the_whole_small_corpus(indexed, index, wren):
    found = indexed.get("/api/v1/memories/2/9/coefficients").json()
    start = np.asarray(index.passages.start)
    m = []
    for a, b in itertools.pairwise(start):
        ids = torch.tensor(np.asarray(index.passages.token[a:b])).long()[None]
        m += wren.run(ids, "coefficients", logits=False).at("coefficients", 2)[0, :, 9].tolist()
    counts, edges = np.histogram(m, bins=len(found["counts"]))
    assert found["sampled"] == found["tokens"] == len(m) and found["edges"] == pytest.approx(edges.tolist(), abs=1e-4)
    assert sum(abs(a - b) for a, b in zip(found["counts"], counts, strict=True)) <= 4  # values on a bin's edge
    assert found["statistics"]["largest"] == pytest.approx(max(m), rel=1e-4)


def test_coefficients_need_an_index(client):
    assert client.get("/api/v1/memories/2/9/coefficients").status_code == 409

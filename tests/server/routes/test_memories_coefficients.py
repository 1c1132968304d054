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


def test_statistics_are_those_of_the_sampled_view_without_a_run_of_the_model(indexed, monkeypatch):
    sampled = indexed.get("/api/v1/memories/2/9/coefficients").json()
    monkeypatch.setattr("unembed.index.coefficients.read", lambda *_: pytest.fail("the model ran"))
    stored = indexed.get("/api/v1/memories/2/9/statistics").json()
    assert stored.pop("schema") == "unembed.coefficient_statistics/1"
    assert stored == {name: sampled[name] for name in stored} and "counts" not in stored


@pytest.mark.parametrize("what", ["coefficients", "statistics"])
def test_coefficients_need_an_index(client, what):
    assert client.get(f"/api/v1/memories/2/9/{what}").status_code == 409

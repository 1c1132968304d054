"""Overlap of raw and normed readings against sets, and random vectors like the values."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny
from unembed.errors import InvalidInput
from unembed.memories.norm_overlap import norm_overlap, overlap, value_norm_overlaps, vectors_like


def test_overlap_is_intersection_over_union():
    a = torch.tensor([[1, 2, 3], [4, 5, 6], [1, 2, 3]])
    b = torch.tensor([[3, 1, 2], [7, 8, 9], [3, 4, 5]])
    assert overlap(a, b).tolist() == pytest.approx([1.0, 0.0, 1 / 5])


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "olmo2"])
@torch.no_grad()
def test_it_is_that_of_the_models_own_norm(family):
    lm = tiny(family, torch.float64)
    values = lm.weights.W_out[1][:6]
    raw = values @ lm.weights.W_U
    assert lm.structure.final_norm is not None
    normed = lm.structure.final_norm.module(values) @ lm.weights.W_U
    expected = []
    for a, b in zip(raw, normed, strict=True):
        one, two = set(a.topk(10).indices.tolist()), set(b.topk(10).indices.tolist())
        expected.append(len(one & two) / len(one | two))
    assert norm_overlap(lm, values, 10).tolist() == pytest.approx(expected)
    others = lm.weights.W_out[0][:6]
    crossed = (lm.structure.final_norm.module(others) @ lm.weights.W_U).topk(10).indices
    expected = [
        len({*a.tolist()} & {*b.tolist()}) / len({*a.tolist()} | {*b.tolist()})
        for a, b in zip(raw.topk(10).indices, crossed, strict=True)
    ]
    assert norm_overlap(lm, values, 10, normed=others).tolist() == pytest.approx(expected), "raw, and others normed"
    with pytest.raises(InvalidInput):
        norm_overlap(lm, values, 0)


def test_random_vectors_have_the_values_mean_and_deviation_and_are_seeded():
    values = torch.randn(500, 6) * torch.tensor([1.0, 2, 3, 4, 5, 6]) + 7
    drawn = vectors_like(values, 200_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(0), values.mean(0), rtol=0, atol=0.1)
    torch.testing.assert_close(drawn.std(0), values.std(0), rtol=0.02, atol=0)
    lm = tiny("gemma2")
    first, again = (value_norm_overlaps(lm, 0, 5, seed=3) for _ in range(2))
    assert (first.values == again.values).all()
    assert (first.random == again.random).all()
    assert len(first.values) == len(first.random_with_value) == 5

"""Patching over several pairs is the patching of each by itself, whatever their lengths."""

from __future__ import annotations

import pytest
import torch
from tests.conftest import tiny

import unembed
from unembed.causality.patching import patch
from unembed.errors import InvalidInput

CLEAN = ["The king of France", "The first month of the year is"]
CORRUPTED = ["The king of England", "The last month of the year is"]


def test_pairs_of_any_length_have_the_numbers_of_each_alone() -> None:
    lm = unembed.load()
    found = patch(lm, CLEAN, CORRUPTED, "z")
    alone = [lm.patch(a, b, "z") for a, b in zip(CLEAN, CORRUPTED, strict=True)]
    for one, other in zip(found.each, alone, strict=True):
        torch.testing.assert_close(one.values, other.values, rtol=1e-5, atol=1e-5)
    both = torch.stack([one.recovered for one in alone])
    torch.testing.assert_close(found.recovered, both.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.spread, both.std(0), rtol=1e-4, atol=1e-5)
    best = found.to_table()[0]
    assert best["recovered"] == pytest.approx(float(found.recovered[best["layer"], best["head"]]))


def test_pairs_of_equal_length_are_compared_by_position() -> None:
    lm = tiny("llama")
    a = [torch.tensor([5, 17, 23]), torch.tensor([9, 17, 40])]
    b = [torch.tensor([5, 60, 23]), torch.tensor([9, 61, 40])]
    metrics = [unembed.logit_difference(7, 9), unembed.logit_difference(8, 10)]
    found = lm.patch(a, b, "resid_pre", metrics)
    assert found.recovered.shape == (2, 3) and found.to_table().column_names[:2] == ["layer", "position"]
    assert [one.metric for one in found.each] == [
        lm.patch(x, y, "resid_pre", m).metric for x, y, m in zip(a, b, metrics, strict=True)
    ]


def test_what_cannot_be_averaged_is_refused() -> None:
    lm = unembed.load()
    with pytest.raises(InvalidInput, match="differ in length"):
        _ = patch(lm, CLEAN, CORRUPTED, "resid_pre").recovered
    with pytest.raises(InvalidInput, match="the numbers of clean"):
        patch(lm, CLEAN, CORRUPTED[:1])
    with pytest.raises(InvalidInput, match="other memories are patched in each pair"):
        patch(lm, CLEAN, CORRUPTED, "coefficients")
    with pytest.raises(InvalidInput, match="3 metrics"):
        patch(lm, CLEAN, CORRUPTED, metric=[None] * 3)
    with pytest.raises(InvalidInput, match="as a list of prompts"):
        patch(lm, torch.tensor([[5, 17], [9, 17]]), torch.tensor([[5, 60], [9, 61]]))

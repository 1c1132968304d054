"""Standardised scores of values against the scores of all values of the layer, in float64."""

from __future__ import annotations

import pytest
import torch

import unembed
from unembed.errors import InvalidInput
from unembed.memories import distinctive_tokens
from unembed.memories.values import written_values


def test_scores_are_standardised_over_the_values_of_the_layer() -> None:
    lm = unembed.load()
    lm.lens = None  # values are read as they are
    scores = (written_values(lm, 3).double() @ lm.weights.W_U.double()).detach()
    expected = ((scores - scores.mean(dim=0)) / scores.std(dim=0, correction=0))[17]
    expected[lm.unlisted] = -torch.inf
    ids, values = distinctive_tokens(lm, 3, 17, 12)
    best = expected.topk(12)
    assert ids.tolist() == best.indices.tolist()
    torch.testing.assert_close(values.double(), best.values, rtol=1e-3, atol=1e-3)
    expected[lm.unlisted] = torch.inf
    low, lowest = distinctive_tokens(lm, 3, 17, 5, bottom=True)
    assert low.tolist() == expected.topk(5, largest=False).indices.tolist() and float(lowest[0]) < 0
    with pytest.raises(InvalidInput, match="linear in the value"):
        distinctive_tokens(lm, 3, 17, basis="final")

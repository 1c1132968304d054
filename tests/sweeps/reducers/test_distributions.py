"""Histograms and quantiles against NumPy on all values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.sweeps.recorder import Everything, lettered, texts
from unembed.errors import InvalidInput
from unembed.sweeps import Histogram, Quantiles, sweep


def test_a_histogram_is_that_of_numpy() -> None:
    lm = lettered("gpt2")
    edges = [-0.1, 0.0, 0.05, 0.3]
    found, (values, _) = sweep(lm, texts(15), [Histogram(edges), Everything()], tokens_per_batch=200)
    all_edges = np.array([-np.inf, *edges, np.inf], dtype=np.float32)
    for key in range(0, lm.d_mlp, 17):
        expected = np.histogram(values[1][:, key].numpy(), all_edges)[0]
        assert found.counts[1][key].tolist() == expected.tolist()
    assert int(found.counts[0].sum()) == values[0].numel()


def test_quantiles_are_exact_within_the_stated_width() -> None:
    lm = lettered("gpt2")
    found, (values, _) = sweep(lm, texts(15), [Quantiles("resid_post"), Everything("resid_post")], tokens_per_batch=200)
    shares = [0.0, 0.01, 0.25, 0.5, 0.9, 1.0]
    for layer in range(lm.n_layers):
        exact = torch.tensor(np.quantile(values[layer].numpy(), shares, method="nearest"))
        torch.testing.assert_close(found.quantile(layer, shares), exact, rtol=2**-8, atol=0)
    assert int(found.counts[0].sum()) == values[0].numel()
    with pytest.raises(InvalidInput):
        found.quantile(0, 1.5)


def test_falling_edges_are_refused() -> None:
    with pytest.raises(InvalidInput):
        Histogram([1.0, 0.5])

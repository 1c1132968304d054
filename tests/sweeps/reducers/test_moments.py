"""Moments and active shares against the same statistics of all values."""

from __future__ import annotations

import pytest
import torch

from tests.sweeps.recorder import Everything, lettered, texts
from unembed.corpus import open_corpus
from unembed.errors import PointMissing
from unembed.sweeps import ActiveFraction, MeanVariance, sweep

CORPUS = {"segmentation": "windows", "window": 24}


@pytest.mark.parametrize("family", ["llama", "qwen2_moe"])
def test_moments_are_those_of_all_values(family: str) -> None:
    lm = lettered(family)
    corpus = open_corpus(texts(20), **CORPUS)
    for point in ("coefficients", "resid_post"):
        found, (values, facts) = sweep(lm, corpus, [MeanVariance(point), Everything(point)], tokens_per_batch=200)
        assert found.count == len(facts["position"])
        for layer in range(lm.n_layers):
            x = values[layer].double()
            torch.testing.assert_close(found.mean[layer], x.mean(0), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(found.variance[layer], x.var(0, correction=0), rtol=1e-5, atol=1e-9)
            assert torch.equal(found.least[layer], x.amin(0)) and torch.equal(found.largest[layer], x.amax(0))


@pytest.mark.parametrize("family", ["opt", "llama", "qwen2_moe"])
def test_active_shares_are_those_of_all_values(family: str) -> None:
    lm = lettered(family)
    for threshold in (0.0, 0.02):
        found, (values, _) = sweep(
            lm, open_corpus(texts(20), **CORPUS), [ActiveFraction(threshold), Everything()], tokens_per_batch=200
        )
        shares = []
        for layer in range(lm.n_layers):
            x = values[layer].abs() if family != "opt" else values[layer]
            assert torch.equal(found.active[layer], (x > threshold).sum(0))
            shares.append((x > threshold).double().mean())
        torch.testing.assert_close(found.by_layer(), torch.stack(shares), rtol=1e-12, atol=0)


def test_a_point_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(PointMissing):
        sweep(lettered("gptj"), ["abc"], [MeanVariance("resid_mid")])

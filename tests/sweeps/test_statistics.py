"""Running statistics beside the same statistics of all values kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.sweeps.recorder import Everything, lettered, texts
from unembed.corpus import open_corpus
from unembed.errors import InvalidInput, OutOfRange, PointMissing
from unembed.sweeps import ActiveFraction, Histogram, MeanVariance, NextTokenCounts, Quantiles, sweep
from unembed.sweeps.forward import feeding

CORPUS = {"segmentation": "windows", "window": 24}


def test_moments() -> None:
    lm = lettered("llama")
    corpus = open_corpus(texts(20), **CORPUS)
    for point in ("coefficients", "resid_post"):
        found, (values, facts) = sweep(lm, corpus, [MeanVariance(point), Everything(point)], tokens_per_batch=200)
        assert found.count == len(facts["position"])
        for layer in range(lm.n_layers):
            x = values[layer].double()
            torch.testing.assert_close(found.mean[layer], x.mean(0), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(found.variance[layer], x.var(0, correction=0), rtol=1e-5, atol=1e-9)
            assert torch.equal(found.least[layer], x.amin(0)) and torch.equal(found.largest[layer], x.amax(0))


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_active_fraction(family: str) -> None:
    lm = lettered(family)
    for threshold in (0.0, 0.02):
        found, (values, _) = sweep(
            lm, open_corpus(texts(20), **CORPUS), [ActiveFraction(threshold), Everything()], tokens_per_batch=200
        )
        shares = []
        for layer in range(lm.n_layers):
            x = values[layer].abs() if family == "llama" else values[layer]
            assert torch.equal(found.active[layer], (x > threshold).sum(0))
            shares.append((x > threshold).double().mean())
        torch.testing.assert_close(found.by_layer(), torch.stack(shares), rtol=1e-12, atol=0)


def test_histogram_is_numpys() -> None:
    lm = lettered("gpt2")
    edges = [-0.1, 0.0, 0.05, 0.3]
    found, (values, _) = sweep(lm, texts(15), [Histogram(edges), Everything()], tokens_per_batch=200)
    all_edges = np.array([-np.inf, *edges, np.inf], dtype=np.float32)
    for key in range(0, lm.d_mlp, 17):
        expected = np.histogram(values[1][:, key].numpy(), all_edges)[0]
        assert found.counts[1][key].tolist() == expected.tolist()
    assert int(found.counts[0].sum()) == values[0].numel()


def test_quantiles_within_the_stated_width() -> None:
    lm = lettered("gpt2")
    found, (values, _) = sweep(lm, texts(15), [Quantiles("resid_post"), Everything("resid_post")], tokens_per_batch=200)
    shares = [0.0, 0.01, 0.25, 0.5, 0.9, 1.0]
    for layer in range(lm.n_layers):
        exact = torch.tensor(np.quantile(values[layer].numpy(), shares, method="nearest"))
        torch.testing.assert_close(found.quantile(layer, shares), exact, rtol=2**-8, atol=0)
    assert int(found.counts[0].sum()) == values[0].numel()
    with pytest.raises(InvalidInput):
        found.quantile(0, 1.5)


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_next_tokens(family: str) -> None:
    lm = lettered(family)
    memories = [(0, 3), (1, 5), (0, 70)]
    corpus = open_corpus(texts(20), **CORPUS)
    found, (values, facts) = sweep(lm, corpus, [NextTokenCounts(memories), Everything()], tokens_per_batch=200)
    following = facts["next"]
    known = following >= 0
    assert 0 < int((~known).sum()) == 20  # only a document's last token has no next one
    for row, (layer, index) in enumerate(memories):
        x = values[layer][:, index].double()
        active = known & ((x.abs() if family == "llama" else x) > 0)
        assert torch.equal(found.counts[row], torch.bincount(following[active], minlength=lm.d_vocab))
        weights = torch.zeros(lm.d_vocab, dtype=torch.float64).index_add_(0, following[active], x[active])
        torch.testing.assert_close(found.weights[row], weights, rtol=1e-12, atol=1e-12)
        token, count = found.top(layer, index, 1)[0]
        assert count == int(found.counts[row].max())
        share = count / int(found.counts[row].sum()) / (int((following == token).sum()) / int(known.sum()))
        assert float(found.lift(layer, index)[token]) == pytest.approx(share, rel=1e-12)
    with pytest.raises(OutOfRange):
        found.top(1, 1)


MAKERS = {
    "moments": lambda: MeanVariance(),
    "active": lambda: ActiveFraction(),
    "histogram": lambda: Histogram([0.0, 0.1]),
    "quantiles": lambda: Quantiles(),
    "next": lambda: NextTokenCounts([(0, 1), (1, 2)]),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_parts_join_to_the_whole_also_through_saved_states(make) -> None:
    lm = lettered("opt")
    whole, *parts = [make() for _ in range(3)]
    for reducer in (whole, *parts):
        reducer.start(lm)
    for i, batch in enumerate(open_corpus(texts(15)).batches(lm, 200)):
        with feeding(lm, [whole, parts[i % 2]]) as feed:
            feed(batch)
    taken = make()
    taken.start(lm)
    taken.load_state(parts[1].state())
    parts[0].merge(taken)
    a, b = whole.state(), parts[0].state()
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(torch.as_tensor(a[name]), torch.as_tensor(b[name]), rtol=1e-9, atol=1e-12)


def test_what_cannot_be_asked() -> None:
    with pytest.raises(InvalidInput):
        Histogram([1.0, 0.5])
    with pytest.raises(InvalidInput):
        NextTokenCounts([])
    with pytest.raises(PointMissing):
        sweep(lettered("gptj"), ["abc"], [MeanVariance("resid_mid")])

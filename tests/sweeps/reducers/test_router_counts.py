"""Routing counts against the gate weights of every position."""

from __future__ import annotations

import pytest
import torch

from tests.sweeps.recorder import Everything, lettered, texts
from unembed.corpus import open_corpus
from unembed.errors import InvalidInput
from unembed.sweeps import RoutedShare, RoutedTokens, sweep


def test_shares_and_tokens_are_those_of_the_gate_weights() -> None:
    lm = lettered("qwen2_moe")
    corpus = open_corpus(texts(25))
    shares, tokens, (values, facts) = sweep(
        lm, corpus, [RoutedShare(), RoutedTokens([1]), Everything("gate_weights")], tokens_per_batch=200
    )
    for layer in range(lm.n_layers):
        chosen = values[layer] != 0
        assert torch.equal(shares.chosen[layer], chosen.sum(0))
        torch.testing.assert_close(shares.share(layer), chosen.double().mean(0), rtol=1e-12, atol=0)
    assert tokens.tokens is not None and tokens.layers == (1,)
    expected = torch.zeros(values[1].shape[1], lm.d_vocab, dtype=torch.int32)
    for token, row in zip(facts["token"].tolist(), values[1] != 0, strict=True):
        expected[:, token] += row.to(torch.int32)
    assert torch.equal(tokens.tokens[0], expected)
    found = tokens.top_tokens(1, 2, top=3)
    counts = torch.bincount(facts["token"], minlength=lm.d_vocab)
    best = max(int(expected[2, t]) / int(counts[t]) for t in range(lm.d_vocab) if counts[t] >= 5)
    token, n, share = found[0]
    assert share == pytest.approx(best) and n == int(expected[2, token])
    assert sum(shares.share(0)) == pytest.approx(2)


def test_layers_without_experts_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="some of these layers"):
        sweep(lettered("llama"), ["abc"], [RoutedShare([0])])


def test_a_sweep_for_an_index_never_makes_the_zeros_of_experts_that_were_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from unembed.models.structure.experts import RoutedCoefficients
    from unembed.sweeps import ActiveFraction, MeanVariance, TopTriggers

    def forbidden(_self: RoutedCoefficients) -> torch.Tensor:
        raise AssertionError("dense coefficients were made")

    lm = lettered("qwen2_moe")  # opened first: the check of its sums makes dense coefficients
    monkeypatch.setattr(RoutedCoefficients, "dense", forbidden)
    sweep(lm, texts(5), [TopTriggers(4), MeanVariance(), ActiveFraction(), RoutedShare()])

"""Agreement of values and triggers, at both poles, against a loop over all values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.reports.geva2021.tiny_study import tiny_study
from tests.sweeps.recorder import Everything, lettered, texts
from unembed.corpus import open_corpus
from unembed.corpus.token_stream import TokenStream
from unembed.reports.geva2021 import values
from unembed.reports.geva2021.triggers import KeyTriggers, reducer
from unembed.sweeps import sweep


@pytest.mark.parametrize("basis", ["raw", "final"])
@pytest.mark.parametrize("target", ["next", "last"])
def test_values_agree_exactly_where_a_loop_over_all_of_them_does(basis: str, target: str) -> None:
    lm, _, text, triggers = tiny_study("gpt2")
    found = values.agreement(lm, text, triggers, basis=basis, target=target)
    norm, head = lm.structure.final_norm, lm.hf.get_output_embeddings()
    assert norm is not None and head is not None
    for layer in range(lm.n_layers):
        for index in range(0, lm.d_mlp, 13):
            row = triggers.row(layer, index)
            v = lm.weights.W_out[layer][index]
            with torch.no_grad():
                p = (v @ lm.weights.W_U if basis == "raw" else head(norm.module(v))).softmax(-1)
            places = [x for x in triggers.positions[row].tolist() if x >= 0]
            paired = [
                int(text.next_tokens(np.array([x]))[0]) if target == "next" else int(text.prefix(x)[-1]) for x in places
            ]
            paired = [x for x in paired if x >= 0]
            assert found.top[row] == int(p.argmax())
            np.testing.assert_allclose(found.probability[row], float(p.max()), rtol=1e-5)
            assert found.followed[row] == len(paired) and found.hits[row] == paired.count(int(p.argmax()))
            if paired:
                assert found.target[row] == paired[0]
                assert found.rank[row] == int((p > p[paired[0]]).sum()) + 1
            else:
                assert found.target[row] == found.rank[row] == -1
        rows = found.layer(layer)
        pairs = [(a, b) for a in found.top[rows] for b in found.target[rows] if b >= 0]
        known = found.target[rows] >= 0
        if known.all():
            expected = sum(a == b for a, b in pairs) / len(pairs)
            assert found.by_chance(layer) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("family", ["llama", "gemma2", "olmo2"])
def test_the_negative_pole_pairs_the_lowest_coefficients_with_negated_values(family: str) -> None:
    lm = lettered(family, torch.float64)
    corpus = open_corpus(texts(8))
    # Rows one at a time: the softmax of gemma2 in transformers gives NaN at padding in float64.
    lists, (every, facts) = sweep(lm, corpus, [reducer("prefixes", 4), Everything()], tokens_per_batch=1)
    text = TokenStream.of(corpus.segments(lm))
    positive, negative = KeyTriggers.of_sweep(lists)
    assert negative is not None
    found = values.agreement(lm, text, negative, negated=True)
    whole = facts["length"] >= 1  # an empty prefix is no trigger
    places = facts["position"][whole]
    for layer in range(lm.n_layers):
        m = every[layer][whole].double()
        norm = lm.feed_forward(layer).branch_norm
        for index in range(0, lm.d_mlp, 7):
            row = negative.row(layer, index)
            order = m[:, index].argsort(stable=True)[:4]
            order = order[m[order, index] < 0]
            n = len(order)
            assert negative.positions[row][:n].tolist() == places[order].tolist()
            assert (negative.positions[row][n:] == -1).all() and np.isposinf(negative.coefficients[row][n:]).all()
            np.testing.assert_allclose(negative.coefficients[row][:n], m[order, index].numpy(), rtol=1e-5)
            assert (positive.coefficients[row][positive.positions[row] >= 0] > 0).all()
            v = lm.weights.W_out[layer][index]
            if norm is not None:  # what reaches the stream is scaled by the gain of the norm behind the FFN
                v = v * (norm.module.weight.detach() + (1 if family == "gemma2" else 0))
            p = (-v @ lm.weights.W_U).softmax(-1)
            assert found.top[row] == int(p.argmax()) == int((v @ lm.weights.W_U).argmin())
            np.testing.assert_allclose(found.probability[row], float(p.max()), rtol=1e-5)
            following = [t for t in text.next_tokens(places[order].numpy()).tolist() if t >= 0]
            assert found.hits[row] == following.count(found.top[row]) and found.followed[row] == len(following)
            if following:
                assert found.target[row] == following[0] and found.rank[row] == int((p > p[following[0]]).sum()) + 1

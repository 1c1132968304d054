"""Agreement of values and triggers, at both signs of the coefficient, against a loop over all values."""

from __future__ import annotations

from itertools import product

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
def test_a_gated_memory_is_two_keys_whose_triggers_and_readings_have_its_sign(family: str) -> None:
    lm = lettered(family, torch.float64)
    corpus = open_corpus(texts(8))
    # Rows one at a time: the softmax of gemma2 in transformers gives NaN at padding in float64.
    lists, (every, facts) = sweep(lm, corpus, [reducer("prefixes", 4), Everything()], tokens_per_batch=1)
    text = TokenStream.of(corpus.segments(lm))
    triggers = KeyTriggers.of_sweep(lists)
    assert triggers.signed.all() and triggers.n_memories == lm.d_mlp
    found = values.agreement(lm, text, triggers)
    whole = facts["length"] >= 1  # an empty prefix is no trigger
    places = facts["position"][whole]
    for layer in range(lm.n_layers):
        m = every[layer][whole].double()
        norm = lm.feed_forward(layer).branch_norm
        agrees = np.zeros(lm.d_mlp, bool)
        for index, pole in product(range(lm.d_mlp), ("positive", "negative")):
            sign, key = 1 if pole == "positive" else -1, triggers.key(layer, index, pole)
            assert triggers.memory(layer, key) == (index, pole)
            # The first half of a layer's keys have the sign of the memory's largest coefficient.
            strongest = m[:, index].abs().argmax()
            assert (key < lm.d_mlp) == (m[strongest, index] * sign > 0)
            row = triggers.row(layer, key)
            agrees[index] |= found.agrees[row]
            if index % 7:
                continue
            order = (-sign * m[:, index]).argsort(stable=True)[:4]
            order = order[sign * m[order, index] > 0]
            n = len(order)
            assert triggers.positions[row][:n].tolist() == places[order].tolist()
            assert (triggers.positions[row][n:] == -1).all()
            assert (sign * triggers.coefficients[row][n:] == -np.inf).all()
            np.testing.assert_allclose(triggers.coefficients[row][:n], m[order, index].numpy(), rtol=1e-5)
            v = sign * lm.weights.W_out[layer][index]
            if norm is not None:  # what reaches the stream is scaled by the gain of the norm behind the FFN
                v = v * (norm.module.weight.detach() + (1 if family == "gemma2" else 0))
            p = (v @ lm.weights.W_U).softmax(-1)
            assert found.top[row] == int(p.argmax())
            np.testing.assert_allclose(found.probability[row], float(p.max()), rtol=1e-5)
            following = [t for t in text.next_tokens(places[order].numpy()).tolist() if t >= 0]
            assert found.hits[row] == following.count(found.top[row]) and found.followed[row] == len(following)
            if following:
                assert found.target[row] == following[0] and found.rank[row] == int((p > p[following[0]]).sum()) + 1
        either, known = found.of_memories(layer)
        assert known.all() and either.tolist() == agrees.tolist()
        rows = found.layer(layer)
        known = found.target[rows] >= 0
        pairs = [(a, b) for a in found.top[rows][known] for b in found.target[rows][known]]
        one = sum(a == b for a, b in pairs) / len(pairs)
        assert found.by_chance(layer) == pytest.approx(2 * one - one**2, abs=1e-12)

"""Shortened triggers against runs of each shortened text."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.reports.geva2021.tiny_study import tiny_study
from tests.stream.test_massive_activations import with_massive_token
from tests.sweeps.recorder import texts
from unembed.corpus import open_corpus
from unembed.corpus.token_stream import TokenStream
from unembed.reports.geva2021 import perturbation
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.parts.keys import shortened
from unembed.reports.geva2021.perturbation import KINDS
from unembed.reports.geva2021.triggers import KeyTriggers, reducer
from unembed.sweeps import sweep


@pytest.mark.parametrize("family", ["opt", "llama", "qwen2_moe"])
def test_shortened_triggers_change_as_in_the_model(family: str) -> None:
    lm, _, text, triggers = tiny_study(family, top=3, bos=family == "llama", n=4)
    keys = triggers.sampled(2, 1, 0, "perturbation")
    assert len(keys) == 2 * lm.n_layers and keys == triggers.sampled(2, 1, 0, "perturbation")
    made = perturbation.changes(lm, text, triggers, keys, seed=5, tokens_per_batch=90)
    found = made.relative
    assert made.left_out == 0
    checked = 0
    for k, (layer, index) in enumerate(keys):
        for t, place in enumerate(triggers.positions[triggers.row(layer, index)].tolist()):
            if place < 0:
                assert np.isnan(found[k, t]).all()
                continue
            prefix, lead = text.prefix(place).tolist(), text.n_special
            if len(prefix) < 2:
                assert np.isnan(found[k, t]).all()
                continue

            def coefficient(ids: list[int], layer: int = layer, index: int = index) -> float:
                return float(lm.run(torch.tensor([ids]), "coefficients")["coefficients"][layer, 0, -1, index])

            whole = coefficient(prefix)
            each = [(coefficient(prefix[:i] + prefix[i + 1 :]) - whole) / whole for i in range(lead, len(prefix))]
            np.testing.assert_allclose(found[k, t, :2], [each[0], each[-1]], rtol=1e-4, atol=1e-5)
            assert np.isclose(each, found[k, t, 2], rtol=1e-4, atol=1e-5).any()
            checked += 1
    assert checked > 5
    if family == "opt":
        assert np.nanmin(found) >= -1


def test_shortened_triggers_that_end_at_a_massive_token_are_left_out() -> None:
    """A trigger that ends there is left out whole; one that ends there without its last token, only in that row."""
    lm, corpus = with_massive_token("llama", "e", torch.float64), open_corpus(texts(8))
    (lists,) = sweep(lm, corpus, [reducer("prefixes", 40)], tokens_per_batch=300)
    only_positive = replace(lists, negative_values=None, negative_positions=None)
    text, triggers = TokenStream.of(corpus.segments(lm)), KeyTriggers.of_sweep(only_positive)
    keys, e = triggers.sampled(6, 1, 0, "perturbation"), lm.single_token("e")
    made = perturbation.changes(lm, text, triggers, keys, seed=5)
    seen: Counter[str] = Counter()
    for k, (layer, index) in enumerate(keys):
        for t, place in enumerate(triggers.positions[triggers.row(layer, index)].tolist()):
            prefix = [] if place < 0 else text.prefix(place).tolist()
            if len(prefix) < 2:
                continue
            without = np.isnan(made.relative[k, t])
            if prefix[-1] == e:
                assert without.all()
            elif prefix[-2] == e:
                assert not without[0] and without[1]
            else:
                assert not without[:2].any()
                coefficients = [
                    float(lm.run(torch.tensor([ids]), "coefficients")["coefficients"][layer, 0, -1, index])
                    for ids in (prefix, prefix[:-1])
                ]
                change = (coefficients[1] - coefficients[0]) / coefficients[0]
                np.testing.assert_allclose(made.relative[k, t, 1], change, rtol=1e-4, atol=1e-5)
            seen["whole" if prefix[-1] == e else "shorter" if prefix[-2] == e else "none"] += 1
    assert min(seen[kind] for kind in ("whole", "shorter", "none")) > 2
    assert made.left_out >= 3 * seen["whole"] + seen["shorter"]


def test_a_layer_whose_triggers_cannot_be_shortened_is_no_layer_of_the_comparison() -> None:
    changes = np.full((3, 2, len(KINDS)), np.nan)
    changes[1:, :, :2] = [[[-0.1, -0.4], [-0.2, -0.5]], [[-0.6, -0.3], [-0.7, -0.1]]]
    m = Mock(spec=Measurements, perturbed=np.array([[0, 1], [1, 1], [2, 1]]), changes=changes, seed=0, n_layers=3)
    found = shortened(m)
    assert found is not None and (found.layers, found.n_layers) == (1, 2)

"""Shortened triggers against runs of each shortened text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.reports.geva2021.tiny_study import tiny_study
from unembed.reports.geva2021 import perturbation


@pytest.mark.parametrize("family", ["opt", "llama", "qwen2_moe"])
def test_shortened_triggers_change_as_in_the_model(family: str) -> None:
    lm, _, text, triggers = tiny_study(family, top=3, bos=family == "llama", n=4)
    keys = triggers.sampled(2, 1, 0, "perturbation")
    assert len(keys) == 2 * lm.n_layers and keys == triggers.sampled(2, 1, 0, "perturbation")
    found = perturbation.changes(lm, text, triggers, keys, seed=5, tokens_per_batch=90)
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

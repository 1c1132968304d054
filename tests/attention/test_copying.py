"""Copying and matching of all heads by eigenvalues, where some layers have no attention."""

from __future__ import annotations

import pytest
import torch

from tests.models.decoder_classes import tiny_model
from unembed.attention import Circuits
from unembed.language_model import load


@pytest.mark.parametrize("model_type", ["jamba", "granitemoehybrid"])
def test_heads_of_layers_with_attention_are_scored_beside_mixers_without(model_type: str) -> None:
    lm = load(tiny_model(model_type))
    assert 0 < len(lm.attention_layers) < lm.n_layers
    circuits = Circuits(lm)
    copying, matching, scores = circuits.copying("raw"), circuits.matching("raw"), circuits.head_scores(length=8)
    for layer in range(lm.n_layers):
        has_attention = layer in lm.attention_layers
        assert bool(copying.eigenvalues[layer].abs().sum() > 0) is has_attention
        assert bool(matching.eigenvalues[layer].abs().sum() > 0) is has_attention
        assert bool(scores.current_token[layer].sum() > 0) is has_attention
    layer = lm.attention_layers[0]
    W_E, W_U, W_V, W_O = (
        w.double() for w in (lm.weights.W_E, lm.weights.W_U, lm.weights.W_V[layer], lm.weights.W_O[layer])
    )
    raised = W_E @ W_V[0] @ W_O[0] @ (W_U - W_U.mean(dim=1, keepdim=True))
    found = copying.eigenvalues[layer, 0].sum()
    torch.testing.assert_close(found.real, torch.trace(raised), rtol=1e-4, atol=1e-6)

"""Copying and matching of all heads by eigenvalues, where some layers have no attention."""

from __future__ import annotations

import pytest
import torch

from tests.models.decoder_classes import tiny_model
from unembed.attention import Circuits
from unembed.errors import Unsupported
from unembed.language_model import load


@pytest.mark.parametrize("model_type", ["jamba", "granitemoehybrid"])
def test_heads_of_layers_with_attention_are_scored_beside_mixers_without(model_type: str) -> None:
    lm = load(tiny_model(model_type))
    assert 0 < len(lm.attention_layers) < lm.n_layers
    circuits = Circuits(lm)
    copying, matching, scores = circuits.copying("raw"), circuits.matching("raw"), circuits.head_scores(length=8)
    for layer in range(lm.n_layers):
        has_attention = layer in lm.attention_layers
        for of in (copying.eigenvalues, copying.positive_fraction, matching.score, scores.current_token):
            assert bool((~of[layer].isnan()).all()) is has_attention
            assert bool(of[layer].isnan().all()) is not has_attention
    assert copying.to_table()["layer"] == [n for n in lm.attention_layers for _ in range(lm.n_heads)]
    layer = lm.attention_layers[0]
    W_E, W_U, W_V, W_O = (
        w.double() for w in (lm.weights.W_E, lm.weights.W_U, lm.weights.W_V[layer], lm.weights.W_O[layer])
    )
    raised = W_E @ W_V[0] @ W_O[0] @ (W_U - W_U.mean(dim=1, keepdim=True))
    found = copying.eigenvalues[layer, 0].sum()
    torch.testing.assert_close(found.real, torch.trace(raised), rtol=1e-4, atol=1e-6)


def test_layers_with_other_numbers_of_heads_have_a_score_for_each_head() -> None:
    lm = load(tiny_model("dots3_note"))
    heads = [block.attention.n_heads for block in lm.structure.blocks]
    assert len(set(heads)) == 2
    copying = Circuits(lm).copying("raw")
    assert (~copying.score.isnan()).sum(dim=1).tolist() == heads
    for layer in (0, lm.n_layers - 1):
        own = Circuits(lm).head(layer, heads[layer] - 1).copying("raw")
        torch.testing.assert_close(copying.score[layer, heads[layer] - 1], own.score, rtol=1e-4, atol=1e-6)


def test_rows_of_the_embedding_that_never_come_out_are_not_tokens() -> None:
    lm = load(tiny_model("mllama"))  # its embedding has rows for images
    assert lm.hf.get_input_embeddings().weight.shape[0] > lm.d_vocab
    assert lm.weights.W_E.shape[0] == lm.weights.W_U.shape[1] == lm.d_vocab
    W_E, W_U, W_V, W_O = (w.double() for w in (lm.weights.W_E, lm.weights.W_U, lm.weights.W_V[0], lm.weights.W_O[0]))
    raised = W_E @ W_V[0] @ W_O[0] @ (W_U - W_U.mean(dim=1, keepdim=True))
    found = Circuits(lm).copying("raw").eigenvalues[0, 0].sum()
    torch.testing.assert_close(found.real, torch.trace(raised), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("model_type", "why"), [("diffllama", "two softmaxes"), ("zaya", "a convolution over positions")]
)
def test_heads_whose_scores_are_not_understood_match_nothing(model_type: str, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        Circuits(load(tiny_model(model_type))).matching("raw")

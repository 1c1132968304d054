"""Scores of positions from the weights alone, against the model's own patterns and plain matrix products."""

from __future__ import annotations

import pytest
import torch

import unembed
from tests.conftest import tiny
from tests.models.structure.test_rotary import llama
from unembed.attention.behaviour.score_terms import score_terms
from unembed.attention.weights.by_offset import (
    attention_by_position,
    position_scores,
    previous_token_by_weights,
    scores_by_offset,
)
from unembed.attention.weights.folded_weights import mean_embedding
from unembed.errors import Unsupported


def test_position_scores_are_the_position_terms_of_a_prompt() -> None:
    lm = tiny("attention-only", torch.float64)
    circuits = unembed.circuits(lm)
    tokens = torch.randint(3, 90, (1, 9), generator=torch.Generator().manual_seed(0))
    for layer in range(2):
        found = position_scores(circuits, layer, 1, positions=9)
        expected = score_terms(lm, tokens, layer, 1).terms["position x position"]
        torch.testing.assert_close(found, expected)
    assert len(position_scores(circuits, 0, 0)) == 64


def test_a_previous_token_head_of_attn_2l_shows_by_its_weights_alone() -> None:
    circuits = unembed.circuits(unembed.load("attn-2l"))
    by_weights = previous_token_by_weights(circuits)
    measured = circuits.head_scores(n_sequences=5, length=32).previous_token
    assert by_weights is not None
    best = int(by_weights[0].argmax())
    assert float(by_weights[0, best]) > 0.9 and int(measured[0].argmax()) == best
    pattern = attention_by_position(position_scores(circuits, 0, best))
    assert float(by_weights[0, best]) == pytest.approx(float(pattern.diagonal(-1).mean()))
    torch.testing.assert_close(pattern.sum(-1), torch.ones(len(pattern), dtype=torch.float64))
    by_offset = scores_by_offset(circuits, 0, best, range(8))
    assert int(by_offset.argmax()) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_with_rotary_positions_the_mean_embedding_is_turned_by_the_offset(dtype: torch.dtype) -> None:
    lm = tiny("llama", dtype)
    circuits, offsets = unembed.circuits(lm), [0, 1, 5, 40]
    mean = lm.weights.W_E.double().mean(0)
    torch.testing.assert_close(mean_embedding(lm, "raw", centre=True).double(), mean, atol=1e-2, rtol=1e-2)
    rotary = lm.structure.blocks[1].attention.scores.rotary
    q, k = (mean @ getattr(lm.weights, name)[1][2 // per].double() for name, per in (("W_Q", 1), ("W_K", 2)))
    expected = [
        float(rotary.rotate(q[None], torch.tensor([50])) @ rotary.rotate(k[None], torch.tensor([50 - o])).T)
        * lm.structure.blocks[1].attention.scores.scale
        for o in offsets
    ]
    tolerance = 1e-9 if dtype is torch.float64 else 1e-2 * max(map(abs, expected))
    assert scores_by_offset(circuits, 1, 2, offsets).tolist() == pytest.approx(expected, abs=tolerance)
    assert previous_token_by_weights(circuits) is None


def test_each_offset_has_the_score_that_its_circuit_has_whatever_else_is_asked_for() -> None:
    """LongRoPE turns all positions in another way where one of them is beyond the original context."""
    lm = unembed.load(llama("longrope", torch.float32))
    circuits = unembed.circuits(lm)
    mean, scale = circuits.mean_embedding("raw").double(), lm.structure.blocks[0].attention.scores.scale
    found = scores_by_offset(circuits, 0, 1, [1, 40, 600])
    for offset, score in zip((1, 40, 600), found.tolist(), strict=True):
        qk = circuits.qk(0, 1, offset).double()
        assert score == pytest.approx(float((mean @ qk.left) @ (qk.right @ mean)) * scale, rel=1e-5)
    assert lm.structure.blocks[0].attention.scores.rotary.short_length == 512, "the case that this is about"


def test_alibi_falls_by_its_slope_and_models_without_positions_are_refused() -> None:
    lm = tiny("bloom")
    slope = float(lm.structure.blocks[0].attention.scores.alibi_slopes[1])
    assert scores_by_offset(unembed.circuits(lm), 0, 1, [0, 3]).tolist() == pytest.approx([0.0, -3 * slope])
    with pytest.raises(Unsupported, match="no table of position embeddings"):
        position_scores(unembed.circuits(lm), 0, 0)
    smol = tiny("smollm3")  # its second layer has no positions
    with pytest.raises(Unsupported, match="do not depend on positions"):
        scores_by_offset(unembed.circuits(smol), 1, 0, [1])

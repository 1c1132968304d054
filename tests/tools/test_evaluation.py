"""Bits per byte against a loop, induction scores on a head built to induce, cards from what was measured."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from tools.evaluation import bits_per_byte, prefix_matching_scores, repetition_gain
from tools.model_cards import as_cell, random_vectors, scores_table, sixty_values, thinned_curve
from transformers import GPT2Config, GPT2LMHeadModel

from unembed.models.architectures.attention_only import AttentionOnlyConfig, AttentionOnlyForCausalLM


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=30, n_positions=16, n_embd=8, n_layer=4, n_head=2, n_inner=12, initializer_range=0.8)
    return GPT2LMHeadModel(config).eval()


@torch.no_grad()
@pytest.mark.parametrize("n", [1, 5, 15, 16, 17, 50, 64])
def test_bits_per_byte_judges_every_token_once_with_its_window(model, n):
    tokens = np.random.default_rng(n).integers(1, 30, size=n)
    ids = torch.tensor([0, *tokens])
    bits = 0.0
    for i in range(1, n + 1):  # token i is the target; the window that judges it begins at a multiple of half a context
        start = 0 if i <= 16 else ((i - 1) // 8 - 1) * 8
        logits = model(ids[None, start:i]).logits[0, -1].double()
        bits -= logits.log_softmax(-1)[ids[i]].item() / math.log(2)
    assert bits_per_byte(model, tokens, 3 * n, context=16) == pytest.approx(bits / (3 * n), rel=1e-5)


def inducing(d_vocab: int = 40) -> AttentionOnlyForCausalLM:
    """Two layers made by hand: head 0.0 looks one token back, head 1.0 at the token after an earlier same one."""
    d = 2 * d_vocab + 64
    config = AttentionOnlyConfig(
        vocab_size=d_vocab,
        hidden_size=d,
        num_hidden_layers=2,
        num_attention_heads=1,
        head_dim=d,
        max_position_embeddings=64,
    )
    model: Any = AttentionOnlyForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        token, copied, place = slice(0, d_vocab), slice(d_vocab, 2 * d_vocab), slice(2 * d_vocab, d)
        one = torch.eye(d)
        model.model.embed_tokens.weight[:, token] = torch.eye(d_vocab)
        model.model.embed_positions.weight[:, place] = torch.eye(64)
        first, second = (layer.self_attn for layer in model.model.layers)
        first.q_proj.weight[place, place] = 1000 * torch.eye(64).roll(-1, 0)  # a query at i asks for place i - 1
        first.k_proj.weight[place, place] = torch.eye(64)
        first.v_proj.weight[copied, token] = torch.eye(d_vocab)
        first.o_proj.weight.copy_(one)
        second.q_proj.weight[copied, token] = 1000 * torch.eye(d_vocab)  # asks who has my token as its predecessor
        second.k_proj.weight[copied, copied] = torch.eye(d_vocab)
        second.v_proj.weight[token, token] = torch.eye(d_vocab)
        second.o_proj.weight.copy_(one)
        model.lm_head.weight[:, token] = 10 * torch.eye(d_vocab)
    return model


def test_scores_name_the_heads_that_were_built_to_look_there():
    model = inducing()
    induction, previous = prefix_matching_scores(model, period=12, first_id=1)
    assert previous[0, 0] > 0.99
    assert induction[1, 0] > 0.6  # less than one where a drawn token occurs twice in a period
    assert induction[0, 0] < 0.1
    assert previous[1, 0] < 0.2
    assert repetition_gain(model, period=12, first_id=1) > 1
    assert "| induction | 1 |" in scores_table(model, period=12, first_id=1)


def test_scores_of_an_untrained_model_are_low_and_the_backend_is_put_back():
    model = AttentionOnlyForCausalLM(AttentionOnlyConfig(vocab_size=40, hidden_size=16, head_dim=4)).eval()
    model.set_attn_implementation("sdpa")
    induction, _ = prefix_matching_scores(model, period=12, first_id=1)
    assert induction.max() < 0.15
    assert model.config._attn_implementation == "sdpa"


def test_drawn_values_lie_in_the_upper_half_and_are_rows_of_w_out(model):
    drawn = sixty_values(model, n=10)
    assert len({(layer, index) for layer, index, _ in drawn}) == 10
    for layer, index, vector in drawn:
        assert layer in (2, 3)
        assert torch.equal(vector, model.transformer.h[layer].mlp.c_proj.weight[index])
    beside = random_vectors([vector for *_, vector in drawn])
    for (*_, value), other in zip(drawn, beside, strict=True):
        torch.testing.assert_close(value.norm(), other.norm())
        assert not torch.allclose(value, other)


def test_cells_show_spaces_and_cannot_break_the_table():
    assert as_cell([" a|b", "\n", "`"]) == "`·a¦b` `↵` `'`"


def test_a_thinned_curve_keeps_means_and_the_later_of_two_walks(tmp_path):
    rows = [{"step": s, "tokens": s * 8, "loss": 9.0} for s in (10, 20, 30)]
    rows += [{"step": 20, "tokens": 160, "held_back_bits_per_byte": 2.0}]
    rows += [{"step": s, "tokens": s * 8, "loss": float(s)} for s in (20, 30, 40)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    thinned_curve(tmp_path / "in.jsonl", tmp_path / "out.jsonl", every=20)
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert written == [
        {"step": 20, "tokens": 160, "loss": 14.5},
        {"step": 20, "tokens": 160, "held_back_bits_per_byte": 2.0},
        {"step": 40, "tokens": 320, "loss": 35.0},
    ]

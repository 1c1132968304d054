"""Attention-only models with weights made by hand, whose heads are known."""

from __future__ import annotations

import torch

import unembed
from unembed.language_model import LanguageModel
from unembed.models.architectures.attention_only import AttentionOnlyConfig, AttentionOnlyForCausalLM


def induction_model(n_vocab: int = 32, n_ctx: int = 64) -> LanguageModel:
    """Two layers of two heads. 0.0 attends to the previous token and writes which it was; 1.0 matches it and copies.

    The stream has three parts: what the token is, what the token before it was, what the prediction is. Positions live
    in a part of their own. Head 0.1 rests at the first position and writes nothing; head 1.1 attends evenly and writes
    the negative of what it reads.
    """
    d_pos, d_head = n_ctx, max(n_vocab, n_ctx)
    d = 3 * n_vocab + d_pos
    config = AttentionOnlyConfig(
        vocab_size=n_vocab, hidden_size=d, num_hidden_layers=2, num_attention_heads=2, head_dim=d_head,
        max_position_embeddings=n_ctx,
    )  # fmt: skip
    model = AttentionOnlyForCausalLM(config).double().eval()
    token, previous, predicted = (slice(i * n_vocab, (i + 1) * n_vocab) for i in range(3))
    place = slice(3 * n_vocab, d)
    one = torch.eye(n_vocab, dtype=torch.float64)
    sharp = 60.0 * d_head**0.5
    with torch.no_grad():
        lm = unembed.load(_resolvable(model))
        for parameter in model.parameters():
            parameter.zero_()
        w = lm.weights
        w.W_E[:, token] = one
        w.W_U[predicted] = 10 * one
        assert w.W_pos is not None
        w.W_pos[:, place] = torch.eye(n_ctx, dtype=torch.float64)
        # 0.0: the query at position p looks for p - 1; what it reads goes to the part "previous".
        w.W_Q[0][0][place, :n_ctx] = torch.diag(torch.ones(n_ctx - 1, dtype=torch.float64), -1) * sharp
        w.W_K[0][0][place, :n_ctx] = torch.eye(n_ctx, dtype=torch.float64)
        w.W_V[0][0][token, :n_vocab] = one
        w.W_O[0][0][:n_vocab, previous] = one
        # 0.1: every query looks for position 0.
        w.W_Q[0][1][place, 0] = sharp
        w.W_K[0][1][place, 0] = torch.eye(n_ctx, dtype=torch.float64)[:, 0]
        # 1.0: the token now is matched with the token that stood before; the source's own token is copied.
        w.W_Q[1][0][token, :n_vocab] = one * sharp
        w.W_K[1][0][previous, :n_vocab] = one
        w.W_V[1][0][token, :n_vocab] = one
        w.W_O[1][0][:n_vocab, predicted] = one
        # 1.1: an even look back that lowers what it sees.
        w.W_V[1][1][token, :n_vocab] = one
        w.W_O[1][1][:n_vocab, predicted] = -0.1 * one
    return lm


def _resolvable(model: AttentionOnlyForCausalLM) -> AttentionOnlyForCausalLM:
    """The model with small random numbers, because a model of zeros cannot be told apart from none when opened."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model

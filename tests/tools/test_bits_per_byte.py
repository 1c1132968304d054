"""Bits in windows, against the sum written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tools.bits_per_byte import bits_in_windows
from transformers import GPT2Config, GPT2LMHeadModel


def test_every_token_but_the_first_is_predicted_once_from_its_window():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, initializer_range=0.5)
    model = GPT2LMHeadModel(config).eval()
    ids = np.random.default_rng(0).integers(0, 20, size=21)
    nats = 0.0
    with torch.no_grad():
        for place in range(1, 21):
            start = (place - 1) // 8 * 8
            logits = model(torch.from_numpy(ids[None, start:place])).logits[0, -1]
            nats -= logits.log_softmax(-1)[int(ids[place])].item()
    assert bits_in_windows(model, ids, 50, context=8) == pytest.approx(nats / math.log(2) / 50, rel=1e-5)

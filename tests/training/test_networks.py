"""Attention and the spread of sub-updates against their definitions."""

from __future__ import annotations

import pytest
import torch

from unembed.training.networks import causal_attention, spread_of


def test_the_spread_of_k_equal_lengths_is_the_root_of_k_whatever_their_scale():
    lengths = torch.zeros(2, 10)
    lengths[0, :9] = 3.0
    lengths[1, 4] = 700.0
    assert spread_of(lengths).item() == pytest.approx((3 + 1) / 2, rel=1e-4)


@pytest.mark.parametrize("block", [128, 4])
def test_block_attention_is_causal_softmax_attention(block):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 10, 5) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(causal_attention(q, k, v, block=block), expected, rtol=1e-5, atol=1e-6)

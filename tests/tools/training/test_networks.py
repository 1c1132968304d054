"""Attention and the count of firing memories against their definitions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tools.training.networks import AttentionOnly, Shape, causal_attention, firing_of


def test_firing_memories_are_counted_whatever_their_scale_and_each_can_be_lowered():
    coefficients = torch.zeros(2, 3, 10)
    coefficients[0, :, :4] = torch.rand(3, 4) + 0.1
    coefficients[1, 0, 2], coefficients[1, 2, 9] = 700.0, 1e-3
    coefficients.requires_grad_()
    counted = firing_of(coefficients)
    assert counted.item() == pytest.approx((3 * 4 + 2) / 6, rel=1e-4)
    (gradient,) = torch.autograd.grad(counted, coefficients)
    mean = coefficients.detach()[..., 2][coefficients[..., 2] > 0].mean()
    assert gradient[0, 0, 2].item() == pytest.approx(1 / (6 * mean.item()), rel=1e-4)


@pytest.mark.parametrize("block", [128, 4])
def test_block_attention_is_causal_softmax_attention(block):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 10, 5) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(causal_attention(q, k, v, block=block), expected, rtol=1e-5, atol=1e-6)


def test_positions_start_from_sinusoids_of_the_shapes_size_and_base():
    shape = Shape(2, 6, 2, 3, 0, 50, 20)
    for made, size, base in ((shape, 0.7, 10_000), (replace(shape, position_size=2, position_base=20), 2, 20)):
        positions = AttentionOnly(made).wpe.weight.tolist()
        for i, row in enumerate(positions):
            waves = [(math.sin(i * base ** (-k / 3)), math.cos(i * base ** (-k / 3))) for k in range(3)]
            assert row == pytest.approx([size * x for pair in waves for x in pair], abs=1e-5)

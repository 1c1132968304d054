"""Gradients of the penalty on spread."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from unembed.training.gradients import Gradients
from unembed.training.networks import Shape, build
from unembed.training.recipes import Phase, Recipe

PHASES = (Phase(3, 64, 2), Phase(5, 128, 1, repeated_windows=1), Phase(8, 64, 2, lr=(1.0, 0.0)))


RECIPE = Recipe(Shape(2, 16, 2, 8, 32, 50, 512), PHASES, warmup=2)


def test_sparsity_adds_the_mean_spread_over_layers():
    torch.manual_seed(0)
    network: Any = build(RECIPE.shape)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    ids = torch.randint(0, 50, (2, 21))
    seen = []
    for block in network.blocks:
        block.w_out.register_forward_pre_hook(lambda module, args: seen.append((args[0], module.weight)))
    gradients = Gradients(network, compiled=False)
    nats, spread = gradients.add(ids, sparsity=0.5, share=1.0)
    spreads = []
    for coefficients, weight in seen:
        lengths = coefficients.double() * weight.double().norm(dim=0)
        spreads.append((lengths.sum(-1) / lengths.norm(dim=-1)).mean().item())
    assert spread == pytest.approx(sum(spreads) / 2, rel=1e-3)
    logits = network(ids[:, :-1]).flatten(0, 1)
    exact = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten()).item()
    assert nats == pytest.approx(exact, rel=2e-2)  # autocast to bfloat16

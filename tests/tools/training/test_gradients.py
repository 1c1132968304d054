"""Gradients of the penalty on memories that fire."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tools.training.gradients import Gradients
from tools.training.networks import Shape, build
from tools.training.recipes import Phase, Recipe

PHASES = (Phase(3, 64, 2), Phase(5, 128, 1, repeated_windows=1), Phase(8, 64, 2, lr=(1.0, 0.0)))


RECIPE = Recipe(Shape(2, 16, 2, 8, 32, 50, 512), PHASES, warmup=2)


def test_sparsity_adds_the_firing_memories_of_a_layer():
    torch.manual_seed(0)
    network: Any = build(RECIPE.shape)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    ids = torch.randint(0, 50, (2, 21))
    seen = []
    for block in network.blocks:
        block.w_out.register_forward_pre_hook(lambda _, args: seen.append(args[0].double()))
    gradients = Gradients(network, compiled=False)
    nats, firing = gradients.add(ids, sparsity=0.5, share=1.0)
    counts = [(coefficients > 0).sum(-1).double().mean().item() for coefficients in seen]
    assert firing == pytest.approx(sum(counts) / 2, rel=1e-3)
    logits = network(ids[:, :-1]).flatten(0, 1)
    exact = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten()).item()
    assert nats == pytest.approx(exact, rel=2e-2)  # autocast to bfloat16

"""Exported models give the network's own logits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tools.training.export import as_transformers, save
from tools.training.networks import Shape, build
from tools.training.recipes import Phase, Recipe
from transformers import AutoModelForCausalLM

PHASES = (Phase(3, 64, 2), Phase(5, 128, 1, repeated_windows=1), Phase(8, 64, 2, lr=(1.0, 0.0)))


RECIPE = Recipe(Shape(2, 16, 2, 8, 32, 50, 512), PHASES, warmup=2)


TOY = replace(RECIPE, shape=Shape(2, 16, 2, 8, 0, 50, 512))


@pytest.mark.parametrize("shape", [RECIPE.shape, TOY.shape], ids=["wren", "toy"])
def test_the_exported_model_gives_the_logits_of_the_network(shape):
    torch.manual_seed(0)
    network = build(shape)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    ids = torch.randint(0, 50, (2, 20))
    torch.testing.assert_close(as_transformers(network)(ids).logits, network(ids), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [RECIPE.shape, TOY.shape], ids=["wren", "toy"])
def test_positions_left_behind_change_nothing_before_them(shape, tmp_path):
    torch.manual_seed(0)
    network = build(shape)
    whole, shorter = tmp_path / "whole", tmp_path / "shorter"
    save(network, whole)
    save(network, shorter, n_positions=24)
    assert network.wpe.weight.shape[0] == 512
    ids = torch.randint(0, 50, (2, 24))
    opened = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval() for folder in (whole, shorter)]
    assert opened[1].config.max_position_embeddings == 24
    assert torch.equal(opened[0](ids).logits, opened[1](ids).logits)

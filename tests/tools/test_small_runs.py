"""Small runs read the same batches, and are measured when they end."""

from __future__ import annotations

import numpy as np
import torch
from tools.small_runs import recipe_of, small_run
from tools.training.networks import Shape
from tools.training.recipes import Phase
from tools.training.windows import EncodedCorpus
from transformers import AutoModelForCausalLM


def test_the_rate_of_a_small_run_falls_to_zero_in_its_last_fifth():
    recipe = recipe_of(6, 192, 0.02, d_vocab=500, tokens=409_600)
    assert recipe.shape == Shape(6, 192, 3, 64, 768, 500, 256)
    assert recipe.steps == 100
    assert recipe.lr_factor(79) == recipe.lr_factor(80) == 1.0
    assert recipe.lr_factor(99) < 0.06
    assert recipe.phase(99).sparsity == 0.02


def test_a_small_run_leaves_a_model_and_its_measurement(tmp_path):
    rng = np.random.default_rng(0)
    tokens = np.minimum(rng.geometric(0.2, size=6000), 49).astype(np.uint16)
    text = EncodedCorpus(tokens, np.array([6000]), np.array(["letters"]), np.array([18000]))
    recipe = recipe_of(1, 64, 0.0, d_vocab=50, tokens=1)
    recipe = type(recipe)(recipe.shape, (Phase(3, context=256, windows=2),))
    row = small_run(recipe, text, text, tmp_path, processes=1, compiled=False)
    assert row["tokens"] == 3 * 1024
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    assert row["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    uniform = np.log2(50) / 3
    assert 0.5 < row["bits per byte"] < 1.1 * uniform

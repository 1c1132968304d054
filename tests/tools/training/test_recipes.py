"""The learning rate of recipes, and the positions they train."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tools.training.networks import Shape
from tools.training.recipes import RECIPES, Phase, Recipe

PHASES = (Phase(3, 64, 2), Phase(5, 128, 1, repeated_windows=1), Phase(8, 64, 2, lr=(1.0, 0.0)))


RECIPE = Recipe(Shape(2, 16, 2, 8, 32, 50, 512), PHASES, warmup=2)


def test_the_learning_rate_rises_stays_and_falls_to_zero():
    recipe = replace(RECIPE, phases=(Phase(15, 64, 1), Phase(20, 64, 1, lr=(1.0, 0.0))), warmup=4)
    factors = [recipe.lr_factor(step) for step in range(20)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert set(factors[4:16]) == {1.0}
    assert factors[16:] == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_the_learning_rate_rises_again_where_the_optimisers_began_anew():
    recipe = replace(RECIPE, phases=(Phase(10, 64, 1), Phase(20, 64, 1, lr=(0.8, 0.8), rise=5)), warmup=0)
    factors = [recipe.lr_factor(step) for step in range(20)]
    assert factors == pytest.approx([1.0] * 10 + [0.16, 0.32, 0.48, 0.64] + [0.8] * 6)


def test_every_recipe_trains_all_positions_it_ships():
    for name, recipe in RECIPES.items():
        if not recipe.shape.n_layers:
            continue  # a table of bigrams has no positions
        assert max(phase.context for phase in recipe.phases) == recipe.shape.context, name
        assert 512 % recipe.shape.context == 0

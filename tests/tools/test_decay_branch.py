"""The recipe of a branch whose learning rate falls to zero."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tools.decay_branch import with_decay

from unembed.training.networks import Shape
from unembed.training.recipes import Phase, Recipe

PHASES = (Phase(3, 64, 2), Phase(5, 128, 1, repeated_windows=1), Phase(8, 64, 2, lr=(1.0, 0.0)))
RECIPE = Recipe(Shape(2, 16, 2, 8, 32, 50, 512), PHASES, warmup=2)


def test_a_branch_repeats_the_trunk_up_to_its_start_and_then_falls_to_zero():
    branch = with_decay(RECIPE, 4, 5)
    assert branch.steps == 9
    assert [branch.lr_factor(step) for step in range(4)] == [RECIPE.lr_factor(step) for step in range(4)]
    assert [branch.lr_factor(step) for step in range(4, 9)] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    assert branch.phase(5).windows == RECIPE.phase(4).windows
    falling = with_decay(replace(RECIPE, phases=(Phase(10, 64, 1, lr=(1.0, 0.0)),)), 5, 2)
    assert [falling.lr_factor(step) for step in range(2, 7)] == pytest.approx([0.8, 0.7, 0.6, 0.5, 0.25])

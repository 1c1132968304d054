"""Which values training may change: those with the fewest automatic concepts."""

from __future__ import annotations

import numpy as np
import pytest
from tools.changing_values import main

import unembed
from unembed.concepts.value_concepts import value_concepts


@pytest.fixture(scope="module")
def lm():
    return unembed.load()


def test_values_with_the_fewest_concepts_change(lm, tmp_path, capsys):
    path = tmp_path / "wren" / "changing.npy"
    assert main(["wren", str(path)]) == 0
    chosen = np.load(path)
    assert chosen.dtype == bool
    assert capsys.readouterr().out == f"{chosen.sum():,} of {chosen.size:,} values\n"
    upper = range(lm.n_layers // 2, lm.n_layers)
    assert chosen.shape == (len(upper), lm.d_mlp)
    draw = np.random.default_rng(0)
    memories = [(int(draw.choice(upper)), int(draw.integers(lm.d_mlp))) for _ in range(60)]
    covered = value_concepts(lm, memories).coverage()
    picked = np.array([chosen[layer - upper[0], index] for layer, index in memories])
    assert covered[picked].max() < covered[~picked].min()
    assert 0.6 <= chosen.mean() < 0.65


def test_without_names_or_a_model_nothing_is_written(tmp_path, capsys):
    assert main([]) == 2
    assert main([str(tmp_path / "nothing"), str(tmp_path / "changing.npy")]) == 1
    assert "no model folder" in capsys.readouterr().err

"""Which values training may change: those with the fewest automatic concepts."""

from __future__ import annotations

import numpy as np
import pytest
from tools.changing_values import changing, main

import unembed
from unembed.concepts.value_concepts import value_concepts


@pytest.fixture(scope="module")
def lm():
    return unembed.load()


def test_values_with_the_fewest_concepts_change(lm):
    chosen = changing(lm)
    upper = range(lm.n_layers // 2, lm.n_layers)
    assert chosen.shape == (len(upper), lm.d_mlp)
    draw = np.random.default_rng(0)
    memories = [(int(draw.choice(upper)), int(draw.integers(lm.d_mlp))) for _ in range(60)]
    covered = value_concepts(lm, memories).coverage()
    picked = np.array([chosen[layer - upper[0], index] for layer, index in memories])
    assert covered[picked].max() < covered[~picked].min()
    assert 0.6 <= chosen.mean() < 0.65


def test_a_file_is_written_that_training_reads(tmp_path, capsys):
    path = tmp_path / "wren" / "changing.npy"
    assert main(["wren", str(path)]) == 0
    written = np.load(path)
    assert written.dtype == bool
    assert capsys.readouterr().out == f"{written.sum():,} of {written.size:,} values\n"
    assert main([]) == 2
    assert main([str(tmp_path / "nothing"), str(path)]) == 1
    assert "no model folder" in capsys.readouterr().err

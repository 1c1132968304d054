"""The sign of a gated memory's value by its weights and by a run: neither depends on the convention of the weights."""

from __future__ import annotations

import pytest
import torch

import unembed
from tests.families import build
from tests.sweeps.recorder import Everything, lettered, texts
from unembed.corpus import open_corpus
from unembed.memories.value_signs import CoefficientSums, signs_by_run, signs_by_weights
from unembed.sweeps import sweep


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_signs_follow_a_value_that_is_negated(family: str) -> None:
    lm, other = lettered(family), unembed.load(build(family))
    down = other.hf.model.layers[1].mlp.down_proj.weight  # type: ignore[union-attr]
    with torch.no_grad():
        down[:, ::2] *= -1
    expected = signs_by_weights(lm, 1)
    assert {1.0, -1.0} == set(expected.tolist())
    expected[::2] *= -1
    assert torch.equal(signs_by_weights(other, 1), expected)
    gate = lm.weights.W_gate[1]
    assert gate is not None
    along = (lm.weights.W_out[1] * signs_by_weights(lm, 1)[:, None] * gate.T).sum(dim=-1)
    assert (along > 0).all()


def test_the_sign_of_a_run_is_that_of_the_sum_without_the_first_position() -> None:
    lm, corpus = lettered("llama"), open_corpus(texts(6))
    sums, (every, facts) = sweep(lm, corpus, [CoefficientSums(), Everything()], tokens_per_batch=200)
    later = facts["column"] > 0
    for layer in range(lm.n_layers):
        expected = every[layer][later].double().sum(dim=0)
        torch.testing.assert_close(sums[layer], expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(signs_by_run(lm, layer, sums[layer]), expected.sign().float())
    nothing = torch.zeros_like(sums[0])
    assert torch.equal(signs_by_run(lm, 0, nothing), signs_by_weights(lm, 0))


def test_values_of_ungated_layers_are_read_as_they_are() -> None:
    lm = lettered("gpt2")
    assert (signs_by_weights(lm, 0) == 1).all()
    assert (signs_by_run(lm, 0, torch.full((lm.d_mlp,), -3.0)) == 1).all()

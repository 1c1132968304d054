"""Memories ranked by their effect on a question, and by what they add beyond their mean coefficient."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny
from unembed.errors import OutOfRange
from unembed.memories.usual_coefficients import UsualCoefficients, usual_coefficients
from unembed.memories.values import Values
from unembed.stream.interventions import set_coefficient
from unembed.trace.memory_effects import ScoredMemories


def measured(lm, seed: int = 0) -> UsualCoefficients:
    """Means that no memory has here, and two memories that count as always on."""
    generator = torch.Generator().manual_seed(seed)
    always = {n: torch.arange(lm.d_mlp) == 3 + n for n in range(lm.n_layers)}
    return UsualCoefficients(always, {}, {n: torch.randn(lm.d_mlp, generator=generator) for n in range(lm.n_layers)})


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_the_deviation_is_the_effect_without_that_of_the_mean_coefficient(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace, usual = lm.trace(tokens[0]), measured(lm)
    question, layers = trace.question(), list(range(lm.n_layers))
    found = ScoredMemories(lm, trace.at(-1), question, layers, usual).largest(lm.n_layers * lm.d_mlp, "deviation")
    rows = {(row.layer, row.index): row for row in (*found.rows, *found.always_on)}
    direct = {
        (row.layer, row.index): row.contribution
        for row in trace.attribution(question.token, against=question.against, by="memory").rows
        if row.index is not None
    }
    assert len(rows) == lm.n_layers * lm.d_mlp
    for (layer, index), row in rows.items():
        assert row.score == pytest.approx(direct[layer, index], rel=1e-4, abs=1e-6)
        if abs(row.coefficient) > 1e-6:
            mean = float(usual.mean[layer][index])
            expected = direct[layer, index] * (1 - mean / row.coefficient)
            assert row.deviation == pytest.approx(expected, rel=1e-3, abs=1e-5)
    sizes = [abs(row.deviation or 0) for row in found.rows]
    assert sizes == sorted(sizes, reverse=True)
    assert found.total == pytest.approx(sum(direct.values()), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("order", ["effect", "deviation", "size", "coefficient"])
def test_by_layer_are_the_layers_own_largest_and_then_those_always_on(order, tokens: torch.Tensor) -> None:
    lm = tiny("llama")
    trace, usual = lm.trace(tokens[0]), measured(lm)
    question, layers = trace.question(), list(range(lm.n_layers))
    by_layer = ScoredMemories(lm, trace.at(3), question, layers, usual).largest_by_layer(4, order)
    for n, rows in zip(layers, by_layer, strict=True):
        alone = ScoredMemories(lm, trace.at(3), question, [n], usual).largest(4, order)
        assert [(r.index, r.always_on) for r in rows] == [(r.index, r.always_on) for r in alone.rows + alone.always_on]
        assert [r.index for r in rows if r.always_on] == [3 + n]
        sizes = {
            "effect": [abs(r.score or 0) for r in rows[:4]],
            "deviation": [abs(r.deviation or 0) for r in rows[:4]],
            "size": [r.contribution for r in rows[:4]],
            "coefficient": [abs(r.coefficient) for r in rows[:4]],
        }[order]
        assert sizes == sorted(sizes, reverse=True) and len(sizes) == 4


def test_without_means_there_is_no_deviation(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    trace = lm.trace(tokens[0])
    usual = UsualCoefficients({}, {})
    scored = ScoredMemories(lm, trace.at(3), trace.question(), [0], usual)
    found = scored.largest(5, "deviation")
    assert all(row.deviation is None for row in found.rows)
    assert [r.index for r in found.rows] == [r.index for r in scored.largest(5).rows]


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_one_memory_is_its_row_of_the_list(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace = lm.trace(tokens[0], edits=[set_coefficient(1, 5, to=0.0)])
    question = trace.question(position=3)
    rows = ScoredMemories(lm, trace.at(3), question, [1], usual_coefficients(lm, None)).largest(lm.d_mlp).rows
    row = next(r for r in rows if r.index == 7)
    assert trace.memory_effect(1, 7, question, 3) == row
    silent = trace.memory_effect(1, 5, question, 3)
    assert (silent.coefficient, silent.score) == (0.0, 0.0)
    with pytest.raises(OutOfRange):
        trace.memory_effect(1, lm.d_mlp)


def test_a_value_read_at_one_position_is_not_read_again_at_another(tokens: torch.Tensor, monkeypatch) -> None:
    lm = tiny("llama")
    layers, read = range(lm.n_layers), list[tuple[int, int]]()
    fresh = [lm.trace(tokens[0]).memory_effects_by_layer(layers, position=p, top=6) for p in range(4)]
    top_and_bottom = Values.top_and_bottom

    def recorded(values, memories, k=30, **more):
        read.extend((n, i) for n, index in memories for i in index)
        return top_and_bottom(values, memories, k, **more)

    monkeypatch.setattr(Values, "top_and_bottom", recorded)
    trace = lm.trace(tokens[0])
    for p, expected in enumerate(fresh):
        assert trace.memory_effects_by_layer(layers, position=p, top=6) == expected
    listed = [(row.layer, row.index) for rows in fresh for layer in rows for row in layer]
    assert len(read) == len(set(read)) and set(read) == set(listed) and len(listed) > len(read)
    assert (
        trace.memory_effects_by_layer(layers, position=0, top=6, top_tokens=3)[0][0].top_tokens
        == (fresh[0][0][0].top_tokens[:3])
    )

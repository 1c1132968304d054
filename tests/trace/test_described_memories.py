"""Memories with a description: those that promote the prediction, by their effect over the average token."""

from __future__ import annotations

import pytest
import torch

import unembed
from tests.conftest import tiny
from unembed.gallery import MemoryDescriptions, memory_descriptions
from unembed.logit_attribution import attribution, memory_contributions_over_average
from unembed.memories.token_ranking import LISTED
from unembed.trace.described_memories import LEAST


class EveryMemory(MemoryDescriptions):
    """Describes all memories."""

    def __len__(self) -> int:
        return 1

    def of(self, layer: int, index: int, *, negative: bool = False) -> str | None:
        return f"L{layer}M{index}{'-' if negative else ''}"


@pytest.fixture(scope="module")
def wren() -> unembed.LanguageModel:
    return unembed.load()


def test_wrens_predictions_list_memories_with_fitting_descriptions(wren):
    for prompt, token, says in [
        ("He was born on 16", " October", "month"),
        ("The war lasted from 1861", " until", "until"),
        ("He is one of the", " most", "superlatives"),
    ]:
        trace = wren.trace(prompt)
        assert trace.lm.token_strings([int(trace.prediction[-1])]) == [token]
        assert any(says in memory.description for memory in trace.described_memories()[:2])


def test_only_memories_with_a_description_whose_value_promotes_the_token_are_listed(wren):
    trace = wren.trace("The United")
    descriptions = memory_descriptions(wren)
    target = int(trace.prediction[-1])
    rows = trace.described_memories(top=50)
    assert rows and [row.effect for row in rows] == sorted((row.effect for row in rows), reverse=True)
    for row in rows:
        assert descriptions.of(row.layer, row.index) == row.description
        scores = wren.weights.W_out[row.layer][row.index] @ wren.weights.W_U
        assert int((scores > scores[target]).sum()) < LISTED
        assert row.effect >= LEAST and row.coefficient > 0


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_effect_is_the_contribution_to_the_logit_less_the_mean_over_the_vocabulary(family, dtype):
    lm = tiny(family, dtype=dtype)
    seen = lm.trace(torch.arange(7)).at(-1)
    for layer in range(lm.n_layers):
        found = memory_contributions_over_average(lm, seen, [layer], -1, 3)[0]
        each = torch.stack([attribution(lm, seen, token, by="memory").contribution for token in range(lm.d_vocab)])
        rows = attribution(lm, seen, 3, by="memory")
        mine = (rows.layer == layer) & (rows.index >= 0)
        exact = (each[3] - each.mean(0))[mine]
        tolerance = 1e-5 if dtype == torch.float32 else 2e-3
        torch.testing.assert_close(found.double(), exact.double(), rtol=0, atol=tolerance * float(exact.abs().max()))


def test_another_model_without_an_index_has_none():
    assert tiny("gpt2").trace(torch.arange(6)).described_memories() == []


def test_a_negative_coefficient_reads_the_description_of_the_negative_pole(monkeypatch):
    monkeypatch.setattr("unembed.trace.prompt_memories.memory_descriptions", lambda lm, folder: EveryMemory())
    monkeypatch.setattr("unembed.trace.described_memories.LEAST", -1.0)
    rows = tiny("llama").trace(torch.arange(6)).described_memories(top=500)
    assert {row.coefficient < 0 for row in rows} == {True, False}
    assert all(row.description.endswith("-") is (row.coefficient < 0) for row in rows)

"""Patching, ablation and paths under edits, fused attention, offloaded layers and experts give the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import tiny
from tests.families import build
from torch import Tensor

import unembed
from unembed.causality.estimated_effects import attribution_patching
from unembed.causality.patching import patch
from unembed.errors import NotOneToken
from unembed.language_model import LanguageModel

CLEAN = torch.tensor([5, 17, 23, 42, 11, 8])
CORRUPTED = torch.tensor([5, 60, 23, 42, 31, 8])


def metric(logits: Tensor) -> Tensor:
    return logits[:, 7].double() - logits[:, 9].double()


EDITS = [unembed.scale_head(0, 1, 0.5), unembed.set_coefficient(0, 3, 0.7), unembed.add_vector(0, [0.2] * 48)]
QUESTIONS: dict[str, Callable[[LanguageModel], Tensor]] = {
    "resid_pre": lambda lm: patch(lm, CLEAN, CORRUPTED, "resid_pre", metric).values,
    "attn_out": lambda lm: patch(lm, CLEAN, CORRUPTED, "attn_out", metric).values,
    "heads": lambda lm: patch(lm, CLEAN, CORRUPTED, "z", metric).values,
    "patterns": lambda lm: patch(lm, CLEAN, CORRUPTED, "pattern", metric).values,
    "memories": lambda lm: patch(lm, CLEAN, CORRUPTED, "coefficients", metric, top=3).values,
    "ablation": lambda lm: lm.ablate(CLEAN, heads="all", layers="all", metric=metric).values,
    "paths": lambda lm: patch(lm, CLEAN, CORRUPTED, "L0H1", metric, through=["L1H0", "mlp_out 1", "logits"]).values,
    "estimates": lambda lm: attribution_patching(lm, CLEAN, metric, top=0).heads,
    "total effects": lambda lm: torch.tensor(
        [row.total or 0.0 for row in lm.trace(CLEAN).attribution(7, against=9, by="head").with_effects(4).rows]
    ),
    "patching under edits": lambda lm: patch(lm, CLEAN, CORRUPTED, "coefficients", metric, top=2, edits=EDITS).values,
    "ablation under edits": lambda lm: lm.ablate(CLEAN, heads="all", metric=metric, edits=EDITS).values,
}


@pytest.mark.parametrize("name", ["gpt2-relu", "llama", "mixtral"])
@pytest.mark.parametrize("question", list(QUESTIONS))
def test_offloaded_layers_give_the_same_numbers(name: str, question: str, tmp_path: Path) -> None:
    build(name).save_pretrained(tmp_path / "model")
    lm = unembed.load(tmp_path / "model", device_map={"": "disk"}, offload_folder=tmp_path / "offload")
    assert all(p.is_meta for p in lm.hf.parameters())
    torch.testing.assert_close(QUESTIONS[question](lm), QUESTIONS[question](tiny(name)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["gpt2-relu", "llama", "gemma2", "mixtral"])
def test_edits_hold_in_every_run(name: str) -> None:
    lm = tiny(name)
    edits = EDITS
    found = patch(lm, CLEAN, CORRUPTED, "coefficients", metric, top=1, positions=[1, 4], edits=edits)
    given = lm.run(CLEAN, "coefficients", edits=edits)
    assert found.indices is not None
    for layer in range(lm.n_layers):
        for column, position in enumerate(found.positions):
            index = int(found.indices[layer, column, 0])
            value = float(given.at("coefficients", layer)[0, position, index])
            edit = unembed.set_coefficient(layer, index, value, positions=[position])
            expected = metric(lm.run(CORRUPTED, edits=[*edits, edit]).logits[:, -1])
            assert float(found.values[layer, column, 0]) == pytest.approx(float(expected), rel=1e-4, abs=1e-5)
    ablated = lm.ablate(CLEAN, heads=[(1, 2)], metric=metric, edits=edits)
    expected = metric(lm.run(CLEAN, edits=[*edits, unembed.scale_head(1, 2, 0.0)]).logits[:, -1])
    assert float(ablated.values[0]) == pytest.approx(float(expected), rel=1e-4, abs=1e-5)
    assert ablated.baseline == pytest.approx(float(metric(lm.run(CLEAN, edits=edits).logits[:, -1])), rel=1e-5)


@pytest.mark.parametrize("name", ["gpt2-relu", "llama"])
def test_a_patched_pattern_acts_before_the_edits_of_its_head(name: str) -> None:
    from unembed.causality.replaced_pass import Replacement
    from unembed.causality.rerun import Rerun

    lm, half = tiny(name), [unembed.scale_head(1, 2, 0.5)]
    found = patch(lm, CLEAN, CORRUPTED, "pattern", metric, edits=half).values[1, 2]
    pattern = lm.run(CLEAN, "pattern", half).at("pattern", 1)[0, 2]
    corrupted = Rerun(lm, CORRUPTED, ("pattern",))
    values = corrupted._captured["values", 1]
    z = 0.5 * pattern @ values[2 // (lm.n_heads // len(values))]
    expected = corrupted.measured([[Replacement("z", 1, None, 2, z)]], metric)[0]
    assert float(found) == pytest.approx(float(expected), rel=1e-4, abs=1e-5)


def test_fused_attention_stays_in_use_where_no_pattern_is_read_or_patched() -> None:
    lm = unembed.load(build("llama"))
    assert lm.hf.config._attn_implementation == "sdpa"
    seen: list[Any] = []

    def note(module: Any, args: Any, kwargs: Any) -> None:
        seen.append(module.config._attn_implementation)

    attention = lm.structure.blocks[1].attention.module
    reading = {"patterns", "estimates", "total effects"}
    handle = attention.register_forward_pre_hook(note, with_kwargs=True)
    fused = {question: QUESTIONS[question](lm) for question in QUESTIONS if question not in reading}
    assert set(seen) == {"sdpa"}
    QUESTIONS["patterns"](lm)
    handle.remove()
    assert lm.hf.config._attn_implementation == "sdpa"
    lm.hf.set_attn_implementation("eager")
    for question, values in fused.items():
        torch.testing.assert_close(QUESTIONS[question](lm), values, rtol=1e-4, atol=1e-5)


def test_memories_of_experts_are_patched_and_ablated() -> None:
    lm = tiny("mixtral")
    found = patch(lm, CLEAN, CORRUPTED, "coefficients", metric, top=2)
    given = lm.run(CLEAN, "coefficients")
    assert found.indices is not None
    for layer, position in ((0, 1), (1, 4), (1, 5)):
        index = int(found.indices[layer, position, 0])
        value = float(given.at("coefficients", layer)[0, position, index])
        edit = unembed.set_coefficient(layer, index, value, positions=[position])
        expected = metric(lm.run(CORRUPTED, edits=[edit]).logits[:, -1])
        assert float(found.values[layer, position, 0]) == pytest.approx(float(expected), rel=1e-4, abs=1e-5)


def test_the_metric_after_one_batch_is_that_of_single_rows() -> None:
    lm = tiny("gemma2")
    whole = patch(lm, CLEAN, CORRUPTED, "resid_pre", metric).values
    single = patch(lm, CLEAN, CORRUPTED, "resid_pre", metric, batch=1).values
    torch.testing.assert_close(whole, single, rtol=1e-5, atol=1e-6)


def test_a_target_of_several_tokens_is_named() -> None:
    lm = unembed.load()
    with pytest.raises(NotOneToken, match="Antidisestablishment"):
        lm.patch("The king of France", "The king of England", metric=unembed.logit_difference(" Antidisestablishment"))
    with pytest.raises(NotOneToken, match="Antidisestablishment"):
        lm.ablate("The king of France", metric=unembed.probability(" Antidisestablishment"))

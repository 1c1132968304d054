"""Ablations equal edits of the run, total effects equal ablations, and screens agree with both where they must."""

from __future__ import annotations

import pytest
import torch
from tests.conftest import tiny
from tests.families import EXPERTS, WITH_MEMORIES, build

import unembed
from unembed.causality.ablation import ablate
from unembed.causality.estimated_effects import attribution_patching
from unembed.errors import InvalidInput, OutOfRange, PointMissing

TOKENS = torch.tensor([5, 17, 23, 42, 11, 8])


def metric(logits: torch.Tensor) -> torch.Tensor:
    return logits[:, 7].double() - logits[:, 9].double()


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_ablating_to_zero_equals_an_edit(name: str) -> None:
    lm = tiny(name)
    heads = ablate(lm, TOKENS, metric=metric)
    assert heads.values.shape == (lm.n_layers, lm.n_heads) and heads.labels[lm.n_heads] == "L1H0"
    for layer, head in ((0, 1), (1, 3)):
        edited = lm.run(TOKENS, edits=[unembed.scale_head(layer, head, 0.0)]).logits[:, -1]
        assert float(heads.values[layer, head]) == pytest.approx(float(metric(edited)), rel=1e-4, abs=1e-5)
    pairs = [(0, 3), (1, 7)]
    memories = ablate(lm, TOKENS, memories=[*pairs, pairs], metric=metric)
    edits = [unembed.set_coefficient(layer, index, 0.0) for layer, index in pairs]
    for value, chosen in zip(memories.values, (edits[:1], edits[1:], edits), strict=True):
        edited = lm.run(TOKENS, edits=chosen).logits[:, -1]
        assert float(value) == pytest.approx(float(metric(edited)), rel=1e-4, abs=1e-5)
    one, other = (lm.memory_name(*pair) for pair in pairs)
    assert memories.labels == (one, other, f"{one} + {other}")
    assert one == ("L0E0M3" if name in EXPERTS else "L0M3")
    assert memories.baseline == pytest.approx(float(metric(lm.run(TOKENS).logits[:, -1])), rel=1e-5, abs=1e-6)


def test_ablating_every_component_leaves_the_embedding() -> None:
    lm = tiny("gpt2-relu")
    from unembed.causality.replaced_pass import Replacement
    from unembed.causality.rerun import Rerun

    rerun = Rerun(lm, TOKENS)
    zero = torch.tensor(0.0)
    row = [Replacement(p, n, None, None, zero) for n in range(lm.n_layers) for p in ("attn_out", "mlp_out")]
    entering = lm.run(TOKENS, "resid_pre")["resid_pre"][0, 0, -1]
    expected = lm.hf.lm_head(lm.hf.transformer.ln_f(entering))
    torch.testing.assert_close(rerun.logits([row])[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2-relu", "llama-biases", "gptj", "opt", "phi", "gemma2"])
def test_ablating_all_writers_leaves_the_logits_of_the_biases(name: str) -> None:
    from unembed.causality.replaced_pass import Replacement
    from unembed.causality.rerun import Rerun

    lm = unembed.load(build(name, torch.float64))
    zero = torch.tensor(0.0, dtype=torch.float64)
    row = [Replacement("resid_pre", 0, None, None, zero)]
    stream = torch.zeros(lm.d_model, dtype=torch.float64)
    for n, block in enumerate(lm.structure.blocks):
        row += [Replacement("z", n, None, h, zero) for h in range(lm.n_heads)]
        row.append(Replacement("coefficients", n, None, torch.arange(lm.d_mlp), zero))
        for module in (block.attention.out_proj, block.feed_forward.down_proj):
            if module.bias is not None:
                stream = stream + module.bias.detach()
    norm = lm.structure.final_norm
    assert norm is not None
    with torch.no_grad():
        expected = lm.structure.capped(lm.structure.head(norm.module(stream)))
    torch.testing.assert_close(Rerun(lm, TOKENS).logits([row])[0], expected, rtol=1e-9, atol=1e-9)
    assert name == "gemma2" or float(stream.abs().max()) > 0.01


def test_a_whole_layer_is_what_attention_and_ffn_add() -> None:
    lm = tiny("llama")
    found = ablate(lm, TOKENS, layers="all", metric=metric)
    assert found.labels == ("layer 0", "layer 1")
    for layer in range(2):
        edits = [unembed.scale_attention(layer, 0.0), unembed.scale_ffn(layer, 0.0)]
        edited = lm.run(TOKENS, edits=edits).logits[:, -1]
        assert float(found.values[layer]) == pytest.approx(float(metric(edited)), rel=1e-4, abs=1e-5)


def test_several_other_prompts_give_a_spread() -> None:
    lm = unembed.load()
    prompts = ["The first month of the year is the coldest", "She looked at the garden and saw a small bird"]
    both = ablate(lm, "Once upon a time", heads=[(0, 1)], to=prompts)
    each = torch.stack([ablate(lm, "Once upon a time", heads=[(0, 1)], to=[p]).values for p in prompts])
    torch.testing.assert_close(both.values, each.mean(0), rtol=1e-5, atol=1e-5)
    assert both.spread is not None and "spread" in both.to_table().columns
    torch.testing.assert_close(both.spread, each.std(0), rtol=1e-5, atol=1e-5)


def test_activations_are_replaced_by_those_of_other_prompts() -> None:
    lm = unembed.load()
    prompt = "Once upon a time there was a little"
    same = ablate(lm, prompt, heads=[(0, 1)], memories=[(5, 3)], to=[prompt])
    assert same.values.tolist() == pytest.approx([same.baseline] * 2, abs=1e-5)
    other = ablate(lm, prompt, heads=[(0, 1)], to=["The first month of the year is the coldest", prompt])
    assert abs(float(other.values[0]) - other.baseline) > 1e-3
    with pytest.raises(InvalidInput, match="fewer than"):
        ablate(lm, prompt, to=["Short"])


def test_the_mean_is_that_of_the_corpus() -> None:
    lm = unembed.load()
    prompt = "Once upon a time there was a little"
    text = "The cat sat on the mat and looked at the dog."
    mean = lm.run(text, "coefficients", logits=False)["coefficients"][5, 0, :, 955].mean()

    found = ablate(lm, prompt, memories=[(5, 955)], to="mean", corpus=[text])
    edited = lm.run(prompt, edits=[unembed.set_coefficient(5, 955, float(mean))]).logits[:, -1]
    top = lm.run(prompt).logits[0, -1].topk(2).indices
    assert float(found.values[0]) == pytest.approx(float(edited[0, top[0]] - edited[0, top[1]]), abs=1e-4)


def test_unknown_writers_are_refused() -> None:
    lm = tiny("gpt2-relu")
    with pytest.raises(OutOfRange):
        ablate(lm, TOKENS, heads=[(0, 9)])
    with pytest.raises(OutOfRange):
        ablate(lm, TOKENS, heads=[(7, 0)])
    with pytest.raises(OutOfRange):
        ablate(lm, TOKENS, memories=[(0, 999)])
    with pytest.raises(OutOfRange):
        ablate(lm, TOKENS, layers=[2])
    with pytest.raises(InvalidInput, match="without targets"):
        ablate(lm, TOKENS, heads=[])
    with pytest.raises(InvalidInput, match="not attn_out"):
        ablate(lm, TOKENS, components=[("resid_pre", 0)])


def test_a_model_without_layers_has_nothing_to_screen_or_ablate() -> None:
    lm = unembed.load("attn-0l")
    for question in (attribution_patching, ablate):
        with pytest.raises(PointMissing, match="no layers"):
            question(lm, TOKENS)

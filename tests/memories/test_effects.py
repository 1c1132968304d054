"""Scores and probability changes of sub-updates against plain float64 sums and against runs without them."""

from __future__ import annotations

import pytest
import torch

import unembed
from tests.conftest import tiny
from tests.models.decoder_classes import tiny_model
from unembed.errors import InvalidInput, OutOfRange, Unsupported
from unembed.memories.effects import sub_update_effects
from unembed.stream.decomposition import memory_branch

FAMILIES = ["gpt2", "llama", "gemma2", "olmo2", "gptj"]
PROMPT = [5, 9, 14, 3, 22]
TOKEN = 17


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_of_all_sub_updates_and_the_bias_add_up_to_the_updates(family):
    lm = tiny(family, torch.float64)
    layer = 1
    for basis in ("raw", "frozen"):
        found = sub_update_effects(lm, PROMPT, layer, TOKEN, indices=range(lm.d_mlp), basis=basis)
        seen = lm.run(PROMPT, ("mlp_out", "resid_post", "coefficients"))
        update = seen.at("mlp_out", layer)[0, -1]
        norm, u = lm.structure.final_norm, lm.weights.W_U[:, TOKEN]

        def score(x, basis=basis, norm=norm, u=u, lm=lm, seen=seen):
            if basis == "raw" or norm is None:
                return float(x @ u)
            return float(lm.structure.logit_scale * norm.frozen(x, norm.scale(seen["resid_post"][-1, 0, -1])) @ u)

        site = lm.feed_forward(layer)
        b_out = lm.weights.b_out[layer]
        bias = torch.zeros_like(update) if b_out is None or site.branch_norm is not None else b_out * site.multiplier
        assert float(found.score.sum()) + score(bias) == pytest.approx(
            score(update), rel=1e-6, abs=1e-7
        )  # Gemma's norms work in float32


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("basis", ["raw", "final", "frozen"])
def test_the_probability_change_is_that_of_the_stream_with_it_and_without_it(family, basis):
    lm = tiny(family, torch.float64)
    layer, index = 1, 7
    found = sub_update_effects(lm, PROMPT, layer, TOKEN, indices=[index], basis=basis)
    before = "resid_pre" if lm.structure.blocks[layer].parallel else "resid_mid"
    seen = lm.run(PROMPT, (before, "resid_post", "mlp_out", "coefficients"))
    m = seen.at("coefficients", layer)[0, -1]
    site = lm.feed_forward(layer)
    part = m[index] * lm.weights.W_out[layer][index]
    if site.branch_norm is not None:
        whole = m @ lm.weights.W_out[layer]
        part = site.branch_norm.frozen(part, site.branch_norm.scale(whole))
    part = part * site.multiplier
    norm = lm.structure.final_norm
    scale = norm.scale(seen["resid_post"][-1, 0, -1]) if norm is not None else torch.ones(1)

    def probability(x):
        if basis == "final":
            logits = lm.structure.capped(lm.structure.head(x if norm is None else norm.module(x)))
        elif basis == "raw":
            logits = x @ lm.weights.W_U
        else:
            logits = lm.structure.logit_scale * (norm.frozen(x, scale) if norm is not None else x) @ lm.weights.W_U
        return float(torch.softmax(logits, -1)[TOKEN])

    x, after = seen.at(before, layer)[0, -1], seen.at("resid_post", layer)[0, -1]
    assert found.probability_before == pytest.approx(probability(x), rel=1e-6)
    assert found.probability_after == pytest.approx(probability(after), rel=1e-6)
    assert float(found.change_alone[0]) == pytest.approx(probability(x + part) - probability(x), abs=1e-7)
    assert float(found.change_removed[0]) == pytest.approx(probability(after - part) - probability(after), abs=1e-7)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_in_the_last_layer_taking_it_out_is_what_the_model_does_without_it(family):
    """A coefficient set to 0 in the real model: the same probability as the last stream without the sub-update."""
    lm = tiny(family, torch.float64)
    layer = lm.n_layers - 1
    found = sub_update_effects(lm, PROMPT, layer, TOKEN, top=4, basis="final")
    whole = lm.run(PROMPT).logits[0, -1].softmax(-1)[TOKEN]
    for index, change in zip(found.index.tolist(), found.change_removed, strict=True):
        without = lm.run(PROMPT, edits=[unembed.set_coefficient(layer, index, 0.0)]).logits[0, -1].softmax(-1)[TOKEN]
        assert float(change) == pytest.approx(float(without - whole), abs=1e-12)


def test_eq_2_the_probability_is_multiplied_by_the_exponential_of_the_score():
    lm = tiny("gpt2", torch.float64)
    found = sub_update_effects(lm, PROMPT, 0, TOKEN, top=3)
    x = lm.run(PROMPT, "resid_mid").at("resid_mid", 0)[0, -1]
    values = lm.weights.W_out[0][found.index] * found.coefficient[:, None]
    p = (x @ lm.weights.W_U).softmax(-1)
    scores = values @ lm.weights.W_U
    with_it = p * scores.exp() / (p * scores.exp()).sum(dim=-1, keepdim=True)
    torch.testing.assert_close(found.change_alone, with_it[:, TOKEN] - p[TOKEN], rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(found.score, found.static_score * found.coefficient, rtol=1e-9, atol=1e-14)


def test_dominant_ones_come_first_and_bad_input_is_one_clear_line():
    lm = tiny("gpt2")
    found = sub_update_effects(lm, PROMPT, 0, TOKEN, top=5)
    assert found.contribution.tolist() == sorted(found.contribution.tolist(), reverse=True)
    assert len(found.to_table()) == 5
    with pytest.raises(InvalidInput, match="basis"):
        sub_update_effects(lm, PROMPT, 0, TOKEN, basis="log")
    with pytest.raises(OutOfRange, match="position"):
        sub_update_effects(lm, PROMPT, 0, TOKEN, position=9)
    with pytest.raises(OutOfRange, match="memory"):
        sub_update_effects(lm, PROMPT, 0, TOKEN, indices=[99_999])
    with pytest.raises(Unsupported):
        sub_update_effects(unembed.load(tiny_model("inkling_text")), PROMPT, 0, TOKEN)


def test_behind_a_gate_per_channel_scores_add_up_to_the_updates():
    lm = unembed.load(tiny_model("rwkv").double())
    found = sub_update_effects(lm, PROMPT, 1, TOKEN, indices=range(lm.d_mlp))
    update = lm.run(PROMPT, "mlp_out").at("mlp_out", 1)[0, -1]
    assert float(found.score.sum()) == pytest.approx(float(update @ lm.weights.W_U[:, TOKEN]), rel=1e-9)


def test_removals_are_rescaled_with_the_stream_in_blocks_that_rescale_it():
    """Behind Gemma 4's layer scalar; the branch norm's scale stays that of the run."""
    lm = unembed.load(tiny_model("gemma4_text"))
    layer = lm.n_layers - 1
    gain = lm.structure.blocks[layer].exit_gain
    assert gain != 1.0
    found = sub_update_effects(lm, PROMPT, layer, TOKEN, top=4, basis="raw")
    seen = lm.run(PROMPT, ("resid_post", "coefficients"))
    m, after = seen.at("coefficients", layer)[0, -1], seen.at("resid_post", layer)[0, -1]
    written = memory_branch(lm, layer, m, None).written(lm.weights.W_out[layer][found.index]) * m[found.index, None]
    before, without = ((x @ lm.weights.W_U).softmax(-1)[..., TOKEN] for x in (after, after - gain * written))
    torch.testing.assert_close(found.change_removed, without - before, rtol=1e-4, atol=1e-8)

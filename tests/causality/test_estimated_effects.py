"""Attribution patching against derivatives of the ablation."""

from __future__ import annotations

import pytest
import torch
from tests.conftest import tiny
from tests.families import EXPERTS

import unembed
from unembed.causality.estimated_effects import attribution_patching

TOKENS = torch.tensor([5, 17, 23, 42, 11, 8])


def metric(logits: torch.Tensor) -> torch.Tensor:
    return logits[:, 7].double() - logits[:, 9].double()


@pytest.mark.parametrize("name", ["gpt2-relu", "llama", "gemma2", "gptj", "opt"])
def test_a_screen_is_the_derivative_of_the_ablation(name: str) -> None:
    lm = tiny(name)
    found = attribution_patching(lm, TOKENS, metric, top=6)
    step = 1e-3
    for layer, head in ((0, 1), (1, 2)):
        values = [
            float(metric(lm.run(TOKENS, edits=[unembed.scale_head(layer, head, 1 + sign * step)]).logits[:, -1]))
            for sign in (1, -1)
        ]
        assert float(found.heads[layer, head]) == pytest.approx(
            (values[0] - values[1]) / (2 * step), rel=0.05, abs=5e-3
        )
    assert len(found.labels) == len(found.exact) == 6 and -1 <= found.rank_agreement <= 1
    assert "approximation" in repr(found)


def test_a_screen_is_exact_where_the_model_is_linear() -> None:
    lm = unembed.load("attn-1l")
    found = attribution_patching(lm, "Once upon a time there was a little", unembed.logit_difference(" girl"), top=8)
    assert found.memories is None and found.sampled == 0
    assert found.estimated == pytest.approx(found.exact, rel=1e-3, abs=1e-4)
    assert found.rank_agreement == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["gpt2-relu", "llama", "gemma2", "gptj"])
def test_a_screen_of_two_prompts_is_the_slope_from_one_to_the_other(name: str) -> None:
    lm = tiny(name)
    other = torch.tensor([5, 60, 23, 42, 31, 8])
    found = attribution_patching(lm, TOKENS, metric, corrupted=other, top=6)
    from unembed.causality.replaced_pass import Replacement
    from unembed.causality.rerun import Rerun

    clean, corrupted = Rerun(lm, TOKENS, ("z",)), Rerun(lm, other, ("z",))
    for layer, head in ((0, 1), (1, 2)):
        own, new = (run.activation("z", layer)[:, head] for run in (corrupted, clean))
        step = 0.05
        rows = [[Replacement("z", layer, None, head, own + sign * step * (new - own))] for sign in (1, -1)]
        up, down = metric(corrupted.logits(rows)).tolist()
        assert float(found.heads[layer, head]) == pytest.approx((up - down) / (2 * step), rel=0.05, abs=5e-3)
    patched = lm.patch(TOKENS, other, "z", metric).values
    for label, exact in zip(found.labels, found.exact, strict=True):
        if "H" in label:
            layer, head = map(int, label[1:].split("H"))
            assert exact == pytest.approx(float(patched[layer, head]) - found.baseline, abs=1e-5)
    assert found.to == "the clean run" and "approximation" in repr(found)


@pytest.mark.parametrize("name", ["gpt2-relu", "llama"])
def test_every_head_is_replaced_for_real_and_agreement_is_over_those_not_chosen_by_estimate(name: str) -> None:
    from scipy.stats import spearmanr

    lm = tiny(name)
    found = attribution_patching(lm, TOKENS, metric, top=5, sample=30)
    base = float(metric(lm.run(TOKENS).logits[:, -1]))
    assert found.exact_heads is not None
    for layer in range(lm.n_layers):
        for head in range(lm.n_heads):
            without = float(metric(lm.run(TOKENS, edits=[unembed.scale_head(layer, head, 0.0)]).logits[:, -1]))
            assert float(found.exact_heads[layer, head]) == pytest.approx(base - without, abs=1e-4)
    strongest = sorted(found.exact_heads.abs().flatten().tolist(), reverse=True)
    listed = [abs(exact) for label, exact in zip(found.labels, found.exact, strict=True) if "H" in label]
    assert listed == pytest.approx(strongest[: len(listed)])
    assert [abs(e) for e in found.exact] == sorted((abs(e) for e in found.exact), reverse=True)
    expected = spearmanr(found.heads.flatten(), found.exact_heads.flatten()).statistic
    assert found.rank_agreement == pytest.approx(float(expected))
    assert found.sampled == 30 and -1 <= found.memory_agreement <= 1
    assert "over 30 memories drawn at random" in found.to_table().title
    assert "over all heads" in found.to_table().title


def test_a_screen_can_leave_the_estimates_unchecked_and_skips_what_layers_lack() -> None:
    found = attribution_patching(tiny("attention-only"), TOKENS, metric, top=0)
    assert found.labels == () and found.memories is None and bool(found.heads.isfinite().all())


@pytest.mark.parametrize("name", EXPERTS)
def test_a_screen_estimates_the_effects_of_experts_memories(name: str) -> None:
    lm = tiny(name)
    found = attribution_patching(lm, TOKENS, metric, top=6)
    assert found.memories is not None and found.memories.shape == (lm.n_layers, lm.d_mlp)
    m = lm.run(TOKENS, "coefficients").at("coefficients", 1)[0]
    assert bool((found.memories[1][(m == 0).all(0)] == 0).all())
    index = int(found.memories[1].abs().argmax())
    low, high = (
        float(metric(lm.run(TOKENS, edits=[unembed.scale_coefficient(1, index, by)]).logits[:, -1]))
        for by in (0.9, 1.1)
    )
    assert float(found.memories[1, index]) == pytest.approx((high - low) / 0.2, rel=0.02, abs=1e-4)

"""The mean effect over prompts is the mean of each prompt's effects."""

from __future__ import annotations

import pytest
import torch

import unembed

PROMPTS = ["Once upon a time there was a little", "She looked at the garden and saw a small bird"]


def test_effects_over_prompts_are_those_of_each_alone() -> None:
    lm = unembed.load()
    found = lm.ablate(PROMPTS, heads="all")
    alone = torch.stack([lm.ablate(prompt, heads="all").effects for prompt in PROMPTS])
    torch.testing.assert_close(found.effects, alone.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.spread, alone.std(0), rtol=1e-4, atol=1e-5)
    best = found.to_table()[0]
    layer, head = map(int, best["ablated"][1:].split("H"))
    assert best["effect"] == pytest.approx(float(found.effects[layer, head]))
    assert bool(lm.ablate(PROMPTS[:1], heads=[(0, 1)]).spread.isnan().all())

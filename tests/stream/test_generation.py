"""Edits hold during generation with the cache exactly as they do in full passes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.conftest import tiny
from tests.families import WITH_MEMORIES
from unembed.language_model import LanguageModel
from unembed.stream.interventions import Edit, add_to_coefficient, scale_head, set_coefficient
from unembed.stream.run import run

EDITS = {
    "all": [set_coefficient(0, 3, 4.0), scale_head(1, 1, 0.0)],
    "last": [add_to_coefficient(1, 5, 6.0, positions="last")],
    "chosen": [set_coefficient(0, 3, 9.0, positions=[2, 10])],
}


def _step_by_step(lm: LanguageModel, ids: torch.Tensor, edits: list[Edit], new: int) -> torch.Tensor:
    for _ in range(new):
        # A full pass refuses positions that its tokens have not reached yet; generation reaches them.
        n = ids.shape[1]
        now = [
            replace(e, positions=tuple(p for p in e.positions if p < n)) if e.positions == (2, 10) else e for e in edits
        ]
        ids = torch.cat([ids, run(lm, ids, edits=now).logits[:, -1:].argmax(-1)], dim=1)
    return ids


@pytest.mark.parametrize("where", ["all", "chosen"])
@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_generation_with_the_cache_equals_full_passes(name: str, where: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    with lm.edited(EDITS[where]), torch.no_grad():
        out = lm.hf.generate(tokens[:1], max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert torch.equal(out, _step_by_step(lm, tokens[:1], EDITS[where], 4))


def test_last_is_the_newest_token_of_each_step(tokens: torch.Tensor) -> None:
    lm = tiny("llama")
    seen: list[torch.Tensor] = []
    handle = None
    with lm.edited(EDITS["last"]), torch.no_grad():
        down = lm.feed_forward(1).down_proj
        assert down is not None
        handle = down.register_forward_pre_hook(lambda _m, a: seen.append(a[0][..., 5].clone()))
        lm.hf.generate(tokens[:1], max_new_tokens=3, do_sample=False, pad_token_id=0, eos_token_id=None)
    handle.remove()
    plain = run(lm, tokens[:1], ["coefficients"])["coefficients"][1, ..., 5]
    torch.testing.assert_close(seen[0][:, :-1], plain[:, :-1])
    torch.testing.assert_close(seen[0][:, -1], plain[:, -1] + 6)
    assert [t.shape[1] for t in seen] == [9, 1, 1] and all(float(t[0, 0]) > 5 for t in seen[1:])


@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom", "opt"])
def test_left_padded_rows_generate_as_they_do_alone(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :4] = 0
    options = dict(max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=None)
    with lm.edited(EDITS["chosen"]), torch.no_grad():
        both = lm.hf.generate(tokens, attention_mask=mask, **options)
        alone = lm.hf.generate(tokens[:1, 4:], **options)
    assert torch.equal(both[0, 9:], alone[0, 5:])

"""The fall of a probability when a memory is removed, against the model's own edits one prefix at a time."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny
from unembed import set_coefficient
from unembed.gallery.removal_effects import Removal, probability_drops


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "olmo2", "gptj", "bloom", "opt", "mixtral", "mistral"])
def test_each_prefix_loses_its_own_memory_at_its_last_token(family, dtype):
    lm = tiny(family, dtype)
    g = torch.Generator().manual_seed(0)
    texts = torch.randint(3, 90, (2, 9), generator=g)
    removals = [
        # Prefixes of one text, one of them twice, and of another; of one token, too; memories of several layers.
        Removal(n % lm.n_layers, 5 * n, text[:length], torch.randint(3, 90, (4,), generator=g).unique())
        for n, (text, length) in enumerate([(texts[0], 4), (texts[0], 9), (texts[1], 6), (texts[0], 4), (texts[1], 1)])
    ]
    drops = probability_drops(lm, removals)
    for drop, one in zip(drops.tolist(), removals, strict=True):
        edit = set_coefficient(one.layer, one.index, 0.0, positions="last")
        before, after = (
            float(lm.run(one.ids[None], edits=edits).logits[0, -1].double().softmax(-1)[one.promoted].sum())
            for edits in ((), (edit,))
        )
        # In bfloat16 a batch with padding rounds differently from a single row.
        assert drop == pytest.approx(before - after, abs=1e-6 if dtype == torch.float32 else 3e-3)
    if dtype == torch.float32:
        assert drops.abs().max() > 1e-6, "something was removed"


def test_nothing_stays_removed_afterwards():
    lm = tiny("gpt2")
    ids = torch.arange(3, 9)
    before = lm.run(ids[None]).logits
    probability_drops(lm, [Removal(0, 1, ids, torch.tensor([5]))])
    assert torch.equal(lm.run(ids[None]).logits, before)

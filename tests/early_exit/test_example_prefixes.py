"""Examples of early exit: what a run of each prefix gives."""

from __future__ import annotations

import pytest
import torch

from unembed import early_exit
from unembed.errors import InvalidInput
from unembed.memories.sub_updates import dominant

TEXTS = [f"The old king of {place} said that he was happy. Then he went home." for place in ("Spain", "France", "Rome")]


def test_examples_are_what_a_run_of_each_prefix_shows(deep, found):
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(3, 97, (int(n),), generator=generator) for n in torch.randint(2, 9, (240,), generator=generator)
    ]
    for i in (0, 17, 239):
        run = deep.run(rows[i][None], ("resid_mid", "resid_post", "mlp_out", "coefficients"))
        for layer in range(5):
            logits = deep.hf.lm_head(deep.hf.transformer.ln_f(run["resid_post"][layer, 0, -1])).detach()
            p = logits.double().softmax(-1).sort(descending=True).values
            assert int(found.top[i, layer]) == int(logits.argmax())
            assert float(found.margin[i, layer]) == pytest.approx(float(p[0] - p[1]), abs=1e-5)
            assert float(found.entropy[i, layer]) == pytest.approx(float(-(p * p.log()).sum()), abs=1e-4)
            own = dominant(run["coefficients"][layer, 0, -1], deep.weights.W_out[layer]).index
            assert found.dominant[i, layer].tolist() == own.tolist()
            assert torch.allclose(found.before[i, layer], run["resid_mid"][layer, 0, -1], atol=1e-5)
            assert torch.allclose(found.update[i, layer], run["mlp_out"][layer, 0, -1], atol=1e-5)
        top = found.top[i].tolist()
        settled = next(n for n in range(5) if all(t == top[-1] for t in top[n:]))
        assert int(found.saturation[i]) == settled


def test_examples_come_from_a_corpus_one_a_sentence(wren):
    a = early_exit.examples(wren, TEXTS, 4, seed=1)
    assert len(a) == 4 and a.n_layers == wren.n_layers and a.corpus
    assert a.top.tolist() == early_exit.examples(wren, TEXTS, 4, seed=1, tokens_per_batch=16).top.tolist()
    with pytest.raises(InvalidInput, match="two tokens"):
        early_exit.examples(wren, ["x"], 4)

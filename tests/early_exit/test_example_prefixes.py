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
            own = dominant(run["coefficients"][layer, 0, -1], deep.weights.W_out[layer])
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


def test_predictions_are_those_of_the_fitted_lens(fitted):
    ids = [fitted.encode(text)[0] for text in TEXTS]
    found = early_exit.examples_of_prefixes(fitted, ids)
    paper = early_exit.examples_of_prefixes(fitted, ids, "final")
    assert (found.basis, paper.basis, paper.logit_lens_top) == ("jacobian", "final", None)
    assert found.top[:, :-1].tolist() != paper.top[:, :-1].tolist()
    assert found.top[:, -1].tolist() == paper.top[:, -1].tolist()  # the model's own
    for i, tokens in enumerate(ids):
        streams = fitted.run(tokens, "resid_post")["resid_post"][:, 0, -1]
        for layer in range(fitted.n_layers):
            p = fitted.lens.read(streams[layer], layer).double().softmax(-1).sort(descending=True)
            assert int(found.top[i, layer]) == int(p.indices[0])
            assert float(found.margin[i, layer]) == pytest.approx(float(p.values[0] - p.values[1]), abs=1e-4)
    table = early_exit.saturation_table(fitted, found)
    assert table.provenance.basis == "jacobian"
    for lens, name in ((found, "lens_examples"), (paper, "examples")):
        assert table.columns[name] == torch.bincount(lens.saturation, minlength=fitted.n_layers).tolist()
    assert found[:2].logit_lens_saturation.tolist() == paper.saturation[:2].tolist()
    drawn = early_exit.examples(fitted, TEXTS, 4, seed=1)
    assert drawn.logit_lens_top.tolist() == early_exit.examples(fitted, TEXTS, 4, seed=1, basis="final").top.tolist()


def test_the_basis_is_a_distribution_that_the_model_has(deep):
    ids = [torch.tensor([5, 6])]
    assert early_exit.examples_of_prefixes(deep, ids).basis == "final"
    with pytest.raises(InvalidInput, match="no lens is fitted"):
        early_exit.examples_of_prefixes(deep, ids, "jacobian")
    with pytest.raises(InvalidInput, match="not one of"):
        early_exit.examples_of_prefixes(deep, ids, "raw")

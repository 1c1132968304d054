"""What a sub-update changes when it is added alone, against the model's own modules in float64."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import unembed
from tests.conftest import tiny
from tests.memories.test_event_sample import prefixes
from tests.models.architectures.test_wikilm import wikilm
from tests.sweeps.recorder import lettered, texts
from unembed.jacobian import fit_lens, reading_by
from unembed.language_model import LanguageModel
from unembed.memories.probability_changes import probability_changes
from unembed.memories.values import written_values
from unembed.names import StreamPoint

FAMILIES = ("opt", "gpt2", "llama", "gptj", "gemma2", "olmo2", "qwen2_moe")


def log_probabilities(lm: LanguageModel, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and log-probabilities of a stream by the model's norm and head in float64."""
    norm, cap = lm.structure.final_norm, getattr(lm.hf.config, "final_logit_softcapping", None)
    if norm is not None:
        divided = x - x.mean(-1, keepdim=True) if norm.centred else x
        x = divided / (divided.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.gain.double()
        x = x if norm.bias is None else x + norm.bias.double()
    logits = x @ lm.weights.W_U.double()
    logits = logits if lm.weights.b_U is None else logits + lm.weights.b_U.double()
    logits = logits if cap is None else cap * (logits / cap).tanh()
    return logits, logits.log_softmax(-1)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_change_is_that_of_the_stream_with_the_sub_update(family: str, dtype: torch.dtype) -> None:
    lm = tiny(family, dtype)
    found = probability_changes(lm, prefixes())
    assert found.score.shape == (lm.n_layers, 6, 10, 2)
    norms = ("post_feedforward_layernorm",) if family in ("gemma2", "olmo2") else ()
    tolerance = {"rtol": 1e-5, "atol": 1e-7} if dtype == torch.float64 else {"rtol": 0.03, "atol": 2e-3}
    for i, segment in enumerate(prefixes()):
        run = lm.run(segment.tokens[None], ("coefficients", "mlp_out", "resid_post"))
        final = int(log_probabilities(lm, run["resid_post"][-1, 0, -1].double())[0].argmax())
        for n in range(lm.n_layers):
            parallel = lm.structure.blocks[n].parallel
            point = "resid_pre" if parallel else "resid_mid"
            x = lm.run(segment.tokens[None], point).at(point, n)[0, -1].double()
            m, values = run["coefficients"][n, 0, -1].double(), lm.weights.W_out[n].double()
            at = (m.abs() * values.norm(dim=-1)).topk(10).indices
            parts = m[at, None] * values[at]
            for name in norms:
                module = getattr(lm.hf.model.layers[n], name)
                gain = module.weight.double() + (1 if family == "gemma2" else 0)
                whole = m @ values
                parts = parts / (whole.square().mean() + lm.hf.config.rms_norm_eps).sqrt() * gain
            candidate = int(log_probabilities(lm, x)[0].argmax())
            before, after = log_probabilities(lm, x[None]), log_probabilities(lm, x + parts)
            for t, token in enumerate((final, candidate)):
                if dtype == torch.bfloat16 and (found.score[n, i, :, t] == 0).all():
                    continue
                np.testing.assert_allclose(
                    found.score[n, i, :, t], (parts @ lm.weights.W_U[:, token].double()).numpy(), **tolerance
                )
                changes = [(b[:, token] - a[:, token]).numpy() for a, b in zip(before, after, strict=True)]
                np.testing.assert_allclose(found.logit[n, i, :, t], changes[0], **tolerance)
                np.testing.assert_allclose(found.log_probability[n, i, :, t], changes[1], **tolerance)


@torch.no_grad()
@pytest.mark.parametrize("family", ["gpt2", "gptj", "gemma2"])
def test_by_the_fitted_lens_a_change_is_that_of_what_it_reads(family: str) -> None:
    lm = lettered(family)
    lens = fit_lens(lm, texts(40), 3, 12)
    with reading_by(lm, lens):
        found = probability_changes(lm, prefixes()[:2], basis="jacobian")
    for i, segment in enumerate(prefixes()[:2]):
        run = lm.run(segment.tokens[None], ("coefficients", "resid_post"))
        final = int(run.logits[0, -1].argmax())
        for n in range(lm.n_layers):
            point: StreamPoint = "resid_pre" if lm.structure.blocks[n].parallel else "resid_mid"
            x = lm.run(segment.tokens[None], point).at(point, n)[0, -1]
            m, values = run["coefficients"][n, 0, -1], written_values(lm, n)
            part = m * values.norm(dim=-1)
            if family == "gemma2":  # its second norm divides the whole update
                norm, whole = lm.hf.model.layers[n].post_feedforward_layernorm, m @ lm.weights.W_out[n]
                values = values / (whole.square().mean() + norm.eps).sqrt()
                part = m * lm.weights.W_out[n].norm(dim=-1)
            at = part.abs().topk(10).indices
            parts = m[at, None] * values[at]
            before, after = lens.read(x, n, point), lens.read(x + parts, n, point)
            for t, token in enumerate((final, int(before.argmax()))):
                np.testing.assert_allclose(
                    found.logit[n, i, :, t], (after - before)[:, token].numpy(), rtol=1e-3, atol=2e-5
                )
                changes = (after.log_softmax(-1) - before.log_softmax(-1))[:, token]
                np.testing.assert_allclose(found.log_probability[n, i, :, t], changes.numpy(), rtol=1e-3, atol=2e-5)
                scores = parts @ lens.jacobian(n, point) @ lm.weights.W_U[:, token]
                np.testing.assert_allclose(found.score[n, i, :, t], scores.numpy(), rtol=1e-3, atol=1e-5)


def test_an_adaptive_softmax_changes_its_own_log_probabilities() -> None:
    lm = unembed.load(wikilm(torch.float64))
    head = lm.structure.head
    found = probability_changes(lm, prefixes())
    assert found.log_probability == pytest.approx(found.logit, abs=1e-9), "its logits are log-probabilities"
    run = lm.run(prefixes()[2].tokens[None], ("coefficients", "resid_mid"))
    x, m = run["resid_mid"][1, 0, -1], run["coefficients"][1, 0, -1]
    values = lm.weights.W_out[1]
    at = (m.abs() * values.norm(dim=-1)).topk(10).indices
    start, end = (head(t).detach().log_softmax(-1) for t in (x[None], x + m[at, None] * values[at]))
    token = int(start[0].argmax())
    np.testing.assert_allclose(found.log_probability[1, 2, :, 1], (end - start)[:, token].numpy(), atol=1e-9)


def test_without_a_norm_the_change_is_the_score_but_for_the_softmax() -> None:
    lm = unembed.load(copy.deepcopy(tiny("gpt2", torch.float64).hf))
    object.__setattr__(lm.structure, "final_norm", None)
    found = probability_changes(lm, prefixes())
    np.testing.assert_allclose(found.logit, found.score, atol=1e-9)
    assert not np.allclose(found.log_probability, found.score, atol=1e-3)


def test_tokens_that_were_never_learned_are_not_predicted() -> None:
    lm = tiny("llama", torch.float64)
    run = lm.run(prefixes()[0].tokens[None])
    hidden = torch.zeros(lm.d_vocab, dtype=torch.bool)
    hidden[int(run.logits[0, -1].argmax())] = True
    one, other = (probability_changes(lm, prefixes()[:1], mask).score[..., 0] for mask in (None, hidden))
    assert not np.allclose(one, other)

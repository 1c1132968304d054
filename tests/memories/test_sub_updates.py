"""Dominant sub-updates and their scores against the FFN's own update."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny
from tests.families import WITH_MEMORIES
from unembed.memories.sub_updates import token_scores
from unembed.stream.run import run


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_scores_of_all_sub_updates_add_up_to_the_updates_score(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    seen = run(lm, tokens[:1], ["coefficients", "mlp_out", "resid_post"])
    for layer in range(lm.n_layers):
        site = lm.feed_forward(layer)
        raw = token_scores(lm, seen, layer, 4, 11, basis="raw").sum()
        bias = torch.zeros(lm.d_model)
        update = seen.at("coefficients", layer)[0, 4] @ lm.weights.W_out[layer]
        if lm.weights.b_out[layer] is not None:
            bias = bias + lm.weights.b_out[layer]
        if site.branch_norm is not None:
            scale = site.branch_norm.scale(update + bias)
            bias = site.branch_norm.frozen(bias, scale) + (
                0 if site.branch_norm.bias is None else site.branch_norm.bias
            )
        whole = seen.at("mlp_out", layer)[0, 4] @ lm.weights.W_U[:, 11]
        part = (bias * site.multiplier) @ lm.weights.W_U[:, 11]
        torch.testing.assert_close(raw + part, whole, rtol=1e-3, atol=1e-4)


def test_dominant_sub_updates_are_sorted_by_contribution(tokens: torch.Tensor) -> None:
    lm = tiny("llama")
    trace = lm.trace(tokens[0])
    found = trace.sub_updates(1, position=3, top=6, token=11)
    m = lm.run(tokens[:1], "coefficients").at("coefficients", 1)[0, 3]
    sizes = m.abs() * lm.weights.W_out[1].norm(dim=-1)
    expected = sizes.argsort(descending=True)[:6].tolist()
    assert [s.index for s in found] == expected
    assert [s.coefficient for s in found] == pytest.approx([float(m[i]) for i in expected])
    assert sum(s.share for s in trace.sub_updates(1, 3, top=lm.d_mlp)) == pytest.approx(1.0, abs=1e-5)
    for sub in found:
        ids = (lm.weights.W_out[1][sub.index] @ lm.weights.W_U).argsort(descending=True)
        assert sub.top_tokens[:3] == lm.token_strings(ids[:3])
        assert sub.bottom_tokens[:3] == lm.token_strings(ids.flip(0)[:3])
        assert sub.promoted == (sub.top_tokens if sub.coefficient >= 0 else sub.bottom_tokens)

"""Differential attention: patterns and sources against the two softmaxes of the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import unembed
from tests.models.decoder_classes import tiny_model
from unembed.errors import Unsupported
from unembed.logit_attribution import attribution
from unembed.stream.run import run

LIMITS = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 1e-1}


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(3, 97, (1, 9), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", list(LIMITS))
def test_a_pattern_is_the_difference_of_two_softmaxes_and_mixes_the_values(dtype: torch.dtype, tokens: Tensor) -> None:
    hf = tiny_model("diffllama").to(dtype)
    lm = unembed.load(hf)
    attention: Any = hf.model.layers[1].self_attn
    given: list[Tensor] = []
    handle = attention.groupnorm.register_forward_pre_hook(lambda _m, args: given.append(args[0]))
    try:
        seen = run(lm, tokens, ["pattern", "values", "z"])
    finally:
        handle.remove()
    site = lm.structure.blocks[1].attention
    assert (site.n_heads, site.d_head) == (2, 32)  # half as many heads as softmaxes, each twice as wide
    pattern, values = seen.at("pattern", 1)[0], seen.at("values", 1)[0]
    mixed = torch.einsum("hds,hsv->dhv", pattern, values.repeat_interleave(2 // values.shape[0], dim=0))
    error = (mixed - given[-1][0]).float().norm() / given[-1].float().norm()
    assert float(error) < LIMITS[dtype]
    by_hand = (1 - attention.lambda_init) * attention.groupnorm(mixed)
    assert float((by_hand - seen.at("z", 1)[0]).detach().float().norm() / by_hand.float().norm()) < LIMITS[dtype]


@pytest.mark.parametrize("dtype", list(LIMITS))
def test_sources_add_up_to_their_heads(dtype: torch.dtype, tokens: Tensor) -> None:
    lm = unembed.load(tiny_model("diffllama").to(dtype))
    heads, sources = (attribution(lm, tokens, 11, by=by) for by in ("head", "source"))
    largest = float(heads.contribution.abs().max())
    for layer in range(lm.n_layers):
        for head in range(2):
            each = [a.contribution[(a.layer == layer) & (a.index == head)].double().sum() for a in (heads, sources)]
            assert float((each[0] - each[1]).abs()) < LIMITS[dtype] * largest


def test_what_needs_one_softmax_for_each_head_is_refused_by_name(tokens: Tensor) -> None:
    lm = unembed.load(tiny_model("diffllama"))
    with pytest.raises(Unsupported, match="the difference of two softmaxes, so that a head has two queries"):
        _ = lm.weights.W_Q[0]
    with pytest.raises(Unsupported, match="which the model does not compute"):
        run(lm, tokens, ["pattern"], grad=True)

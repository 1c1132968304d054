"""Activation functions called piece by piece give the bits of one call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.conftest import tiny
from unembed.sweeps import chunked_gelu
from unembed.sweeps.chunked_gelu import TANH_GELUS, in_pieces


@pytest.mark.parametrize("module", TANH_GELUS, ids=lambda module: module.__name__)
@pytest.mark.parametrize("width", [80, 77, 3072])
def test_bits_are_those_of_one_call(module: type, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_gelu, "PIECE", 1000)
    x = 4 * torch.randn(3, 37, width, generator=torch.Generator().manual_seed(0))
    activation = module().eval()
    given = []

    def noting(piece: torch.Tensor) -> torch.Tensor:
        given.append(piece.numel())
        return activation(piece)

    with torch.no_grad():
        found = chunked_gelu._by_pieces(noting)(x)
        assert torch.equal(found, activation(x))
        assert len(given) > 2 and sum(given) == x.numel()
        turned = x.transpose(0, 1)
        assert torch.equal(chunked_gelu._by_pieces(activation)(turned), activation(turned))


def test_a_pass_has_the_models_bits_and_hooks_see_one_call(
    tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = tiny("gpt2")
    exact = lm.run(tokens, "coefficients")
    monkeypatch.setattr(chunked_gelu, "PIECE", 50)
    activation: Any = lm.hf.get_submodule("transformer.h.0.mlp.act")
    seen = []
    handle = activation.register_forward_hook(lambda _m, _a, out: seen.append(out.shape))
    try:
        with in_pieces(lm):
            assert "forward" in vars(activation)
            found = lm.run(tokens, "coefficients")
    finally:
        handle.remove()
    assert torch.equal(found["coefficients"], exact["coefficients"]) and torch.equal(found.logits, exact.logits)
    assert seen == [exact["coefficients"][0].shape]
    assert "forward" not in vars(activation)


def test_a_module_that_another_has_taken_over_is_left() -> None:
    lm = tiny("gpt2")
    activation: Any = lm.hf.get_submodule("transformer.h.0.mlp.act")
    activation.forward = mine = lambda x: x
    try:
        with in_pieces(lm):
            assert activation.forward is mine
        assert activation.forward is mine
    finally:
        del activation.forward

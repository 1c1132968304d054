"""Which memories count as always on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unembed as package
from tests.stream.test_massive_activations import with_massive_token
from tests.sweeps.recorder import lettered
from unembed.memories import usual_coefficients as measuring
from unembed.memories.usual_coefficients import usual_coefficients


def test_a_memory_that_fires_on_every_token_counts_as_always_on() -> None:
    lm = package.load()
    assert usual_coefficients(lm, None).always_on[4][571]
    firing = sum(int(on.sum()) for on in usual_coefficients(lm, None).always_on.values())
    assert 0 < firing < 0.01 * lm.n_layers * lm.d_mlp


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_with_massive_activations_are_left_out(dtype: torch.dtype) -> None:
    lm = with_massive_token("llama", "q", dtype)
    ids = lm.encode("q a b c d e f g h i j k l m n o")
    found = measuring._of_tokens(lm, ids)
    plain = measuring._of_tokens(lettered("llama", dtype), ids)
    for layer in range(lm.n_layers):
        m = lm.run(ids, "coefficients", logits=False).at("coefficients", layer)[0].float()
        rest = m[1:].square().mean(0)
        torch.testing.assert_close(found.usual[layer], rest.sqrt(), rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(found.mean[layer], m[1:].mean(0), rtol=1e-5, atol=1e-7)
        assert torch.equal(found.massive[layer], m.square().mean(0) > 4 * rest)
        assert not plain.massive[layer].any(), "the control"
    assert any(one.any() for one in found.massive.values())


def test_what_was_measured_is_read_again_until_the_weights_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path))
    passes: list[int] = []
    measured = measuring._of_tokens
    monkeypatch.setattr(measuring, "_of_tokens", lambda lm, tokens: (passes.append(1), measured(lm, tokens))[1])
    first, again, changed, hooked = (package.load() for _ in range(4))
    found = usual_coefficients(first, None)
    for name in ("always_on", "usual", "mean", "massive"):
        one, other = getattr(found, name), getattr(usual_coefficients(again, None), name)
        assert list(one) == list(other) and all(torch.equal(one[n], other[n]) for n in one)
    assert len(passes) == 1
    with torch.no_grad():
        changed.weights.W_out[4][571, 3] += 0.5
    usual_coefficients(changed, None)
    assert len(passes) == 2
    handle = hooked.structure.blocks[0].module.register_forward_hook(lambda _m, _a, out: None)
    usual_coefficients(hooked, None)
    handle.remove()
    assert len(passes) == 3

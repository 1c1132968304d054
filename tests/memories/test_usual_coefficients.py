"""Which memories count as always on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unembed as package
from unembed.memories import usual_coefficients as measuring
from unembed.memories.usual_coefficients import usual_coefficients


def test_a_memory_that_fires_on_every_token_counts_as_always_on() -> None:
    lm = package.load()
    assert usual_coefficients(lm, None).always_on[4][571]
    firing = sum(int(on.sum()) for on in usual_coefficients(lm, None).always_on.values())
    assert 0 < firing < 0.01 * lm.n_layers * lm.d_mlp


def test_what_was_measured_is_read_again_until_the_weights_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path))
    passes: list[int] = []
    measured = measuring._of_tokens
    monkeypatch.setattr(measuring, "_of_tokens", lambda lm, tokens: (passes.append(1), measured(lm, tokens))[1])
    first, again, changed, hooked = (package.load() for _ in range(4))
    found = usual_coefficients(first, None)
    for name in ("always_on", "usual", "mean"):
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

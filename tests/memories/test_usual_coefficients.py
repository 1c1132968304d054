"""Which memories count as always on."""

from __future__ import annotations

import unembed as package
from unembed.memories.usual_coefficients import usual_coefficients


def test_a_memory_that_fires_on_every_token_counts_as_always_on() -> None:
    lm = package.load()
    assert usual_coefficients(lm, None).always_on[4][571]
    firing = sum(int(on.sum()) for on in usual_coefficients(lm, None).always_on.values())
    assert 0 < firing < 0.01 * lm.n_layers * lm.d_mlp

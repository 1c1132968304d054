"""The fitted Jacobian against finite differences of the model itself, on every kind of block."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import unembed
from tests.families import build
from unembed.errors import InvalidInput, Unsupported
from unembed.jacobian import fit_lens
from unembed.jacobian.fit import _add_jacobians, _Sums
from unembed.models.decoder import Decoder

TOKENS = torch.tensor([5, 9, 17, 3, 22, 41, 8])
STEP = 3e-4
FAMILIES = ("gpt2", "llama", "qwen2", "gemma2", "gpt_neox", "mixtral", "falcon-7b")
"""Ungated, gated with grouped queries, biased, sandwich norms, parallel, experts, parallel with one norm."""


def jacobians(lm: Decoder) -> _Sums:
    size = (lm.n_layers, lm.d_model, lm.d_model)
    sums = _Sums(torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64))
    _add_jacobians(lm, TOKENS, sums)
    return sums


def moved(lm: unembed.LanguageModel, point: str, layer: int, by: Tensor) -> Tensor:
    """The last stream at the last position when a vector is added at a point of a layer there."""

    def add(stream: Tensor, at: int) -> Tensor | None:
        if at != layer:
            return None
        changed = stream.clone()
        changed[0, -1] += by
        return changed

    last = lm.n_layers - 1
    return lm.run(TOKENS, capture=("resid_post",), hooks={point: add}, layers=[last]).at("resid_post", last)[0, -1]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_jacobian_is_what_adding_a_vector_does_to_the_last_stream(family: str) -> None:
    lm = unembed.load(build(family, torch.float64))
    sums = jacobians(lm)
    made = torch.Generator().manual_seed(0)
    for layer in range(lm.n_layers):
        for point, found in (("resid_pre", sums.before), ("resid_mid", sums.middle)):
            if point == "resid_mid" and not lm.structure.blocks[layer].is_sequential:
                continue
            by = torch.randn(lm.d_model, dtype=torch.float64, generator=made)
            at = "attn_out" if point == "resid_mid" else point  # what attention adds, resid_mid has more of
            here = moved(lm, at, layer, STEP * by) - moved(lm, at, layer, -STEP * by)
            # float32 norms inside a float64 model limit what a finite difference can show.
            torch.testing.assert_close(by @ found[layer], here / (2 * STEP), rtol=5e-3, atol=5e-3)
            assert not torch.allclose(by @ found[layer].T, here / (2 * STEP), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_half_precision_gives_the_same_jacobian_to_its_own_rounding(family: str) -> None:
    whole, half = (jacobians(unembed.load(build(family, dtype))) for dtype in (torch.float32, torch.bfloat16))
    missed = (whole.before - half.before).norm() / whole.before.norm()
    assert float(missed) < 0.05


def test_without_a_cache_whole_contexts_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = unembed.load(build("llama"))
    cached = jacobians(lm)
    monkeypatch.setattr("unembed.jacobian.fit._cache_of", lambda *_: None)
    torch.testing.assert_close(jacobians(lm).before, cached.before, rtol=1e-4, atol=1e-5)


def test_a_text_that_is_too_short_is_refused() -> None:
    lm = unembed.load("attn-1l")
    with pytest.raises(InvalidInput, match="a lens needs at least two"):
        fit_lens(lm, ["A few words."], contexts=4, length=32)


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(Unsupported, match="it does not have layers"):
        fit_lens(unembed.load("attn-0l"), contexts=4, length=32)

"""Passes of a last token in copies: against one edited run of the whole model for each copy."""

from __future__ import annotations

import copy

import torch

from tests.conftest import tiny
from unembed.jacobian import passes
from unembed.jacobian.passes import cache_of, last_token_passes
from unembed.language_model import LanguageModel

COPIES = 3


def _added(lm: LanguageModel) -> torch.Tensor:
    return torch.randn(COPIES, lm.d_model, generator=torch.Generator().manual_seed(0))


def test_every_copy_is_an_edited_run(any_lm: LanguageModel) -> None:
    window = torch.randint(3, any_lm.d_vocab, (9,), generator=torch.Generator().manual_seed(1))
    added = _added(any_lm)
    for layer in range(any_lm.n_layers):
        found = last_token_passes(any_lm, window, COPIES, layer, lambda stream: stream + added.to(stream))
        expected = passes._in_copies(any_lm, window, COPIES, layer, lambda stream: stream + added.to(stream), None)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    assert not torch.allclose(found[0], found[1], atol=1e-3)


def test_a_given_cache_is_left_as_it_was() -> None:
    lm = tiny("llama")
    window = torch.randint(3, lm.d_vocab, (9,), generator=torch.Generator().manual_seed(1))
    cache = cache_of(lm, window[:-1])
    before = copy.deepcopy(cache)
    assert cache is not None
    added = _added(lm)
    first, second = (
        last_token_passes(lm, window, COPIES, 0, lambda stream: stream + added.to(stream), cache) for _ in range(2)
    )
    assert torch.equal(first, second)
    for own, other in zip(cache.layers, before.layers, strict=True):
        assert torch.equal(own.keys, other.keys)


def test_layers_below_are_run_once() -> None:
    lm = tiny("llama")
    window = torch.randint(3, lm.d_vocab, (9,), generator=torch.Generator().manual_seed(1))
    cache, sizes = cache_of(lm, window[:-1]), []
    handles = [
        block.module.register_forward_hook(lambda _m, args, _out: sizes.append(len(args[0])))
        for block in lm.structure.blocks
    ]
    last_token_passes(lm, window, COPIES, 0, lambda stream: stream + 1, cache)
    for handle in handles:
        handle.remove()
    assert sizes == [1, *[COPIES] * (lm.n_layers - 1)]

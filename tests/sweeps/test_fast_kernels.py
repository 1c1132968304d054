"""The fast forward pass is near the exact one, by a difference that is measured, and the model is restored after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import tiny
from tests.families import WITH_MEMORIES
from tests.sweeps.recorder import Everything, lettered, texts
from tests.sweeps.test_checkpoint import same
from unembed.corpus import open_corpus
from unembed.errors import CheckpointFault, InvalidInput, Unsupported
from unembed.sweeps import TopTriggers, fast_difference, fast_kernels, sweep
from unembed.sweeps.fast_kernels import chunked_gelu, fast_forward, processor_has_bfloat16, tanh_gelus

needs_bfloat16 = pytest.mark.skipif(not processor_has_bfloat16(), reason="this processor does not multiply in bfloat16")
MODES = ["float32", pytest.param("bfloat16", marks=needs_bfloat16)]


def coefficients(family: str, mode: Any) -> torch.Tensor:
    values, _ = sweep(lettered(family), texts(6), [Everything()], tokens_per_batch=150, fast=mode)[0]
    return torch.stack(values)


@pytest.mark.parametrize("family", WITH_MEMORIES)
def test_other_kernels_change_rounding_only(family: str, tokens: torch.Tensor) -> None:
    lm = tiny(family)
    exact = lm.run(tokens, "coefficients")
    with fast_forward(lm, "float32"):
        found = lm.run(tokens, "coefficients")
    torch.testing.assert_close(found["coefficients"], exact["coefficients"], rtol=1e-4, atol=1e-5)
    again = lm.run(tokens, "coefficients")
    assert torch.equal(again.logits, exact.logits), "the model is as it was"
    assert not any("forward" in vars(module) for module in lm.hf.modules())


@pytest.mark.parametrize("mode", MODES)
def test_the_difference_equals_its_definition(mode: Any) -> None:
    lm = lettered("gpt2")
    corpus = open_corpus(texts(6))
    batches = list(corpus.batches(lm, 10_000))
    assert len(batches) == 1
    exact, found = (sweep(lm, corpus, [Everything()], tokens_per_batch=10_000, fast=m)[0][0] for m in (None, mode))
    difference = fast_difference(lm, batches[0], mode)
    assert difference == pytest.approx(
        max(float((f - e).abs().max() / e.abs().max()) for e, f in zip(exact, found, strict=True)), rel=1e-6
    )
    assert 0 < difference < {"float32": 1e-5, "bfloat16": 0.05}[mode]


@needs_bfloat16
def test_bfloat16_is_coarser_and_tensors_keep_their_type() -> None:
    exact, small, half = (coefficients("gpt2", mode) for mode in (None, "float32", "bfloat16"))
    assert half.dtype == torch.float32
    assert (half - exact).abs().max() > 100 * (small - exact).abs().max()


def test_a_checkpoint_of_the_exact_pass_is_another(tmp_path: Path) -> None:
    lm, file = lettered("gpt2"), tmp_path / "sweep.pt"
    [exact] = sweep(lm, texts(4), [TopTriggers(5)], checkpoint=file)
    with pytest.raises(CheckpointFault, match="its fast is None, not float32"):
        sweep(lm, texts(4), [TopTriggers(5)], checkpoint=file, fast="float32")
    assert same(sweep(lm, texts(4), [TopTriggers(5)], checkpoint=file)[0], exact)


@needs_bfloat16
def test_modules_patched_by_other_libraries_are_left_alone() -> None:
    lm = lettered("opt")
    module = lm.hf.get_decoder().layers[0].fc1
    theirs = module.forward
    module.forward = lambda x: theirs(x)
    mine = module.forward
    try:
        with fast_forward(lm, "bfloat16"):
            assert module.forward is mine
            assert "forward" in vars(lm.hf.get_decoder().layers[0].fc2)
        assert module.forward is mine
    finally:
        del module.forward


def test_unknown_and_unsupported_fast_dtypes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="not one of float32, bfloat16"):
        fast_kernels.check_fast(lettered("opt"), "int8")
    monkeypatch.setattr(fast_kernels.torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(Unsupported, match="does not multiply in bfloat16"):
        sweep(lettered("opt"), ["abc"], [TopTriggers(5)], fast="bfloat16")
    sweep(lettered("opt"), ["abc"], [TopTriggers(5)], fast="float32")


@pytest.mark.parametrize("module", tanh_gelus(), ids=lambda module: module.__name__)
@pytest.mark.parametrize("width", [80, 77, 3072])
def test_chunks_give_the_bits_of_one_call(module: type, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_kernels, "CHUNK", 1000)
    x = 4 * torch.randn(3, 37, width, generator=torch.Generator().manual_seed(0))
    activation = module().eval()
    given = []

    def record(chunk: torch.Tensor) -> torch.Tensor:
        given.append(chunk.numel())
        return activation(chunk)

    with torch.no_grad():
        found = fast_kernels._in_chunks(record)(x)
        assert torch.equal(found, activation(x))
        assert len(given) > 2 and sum(given) == x.numel()
        turned = x.transpose(0, 1)
        assert torch.equal(fast_kernels._in_chunks(activation)(turned), activation(turned))


def test_a_chunked_pass_has_the_bits_of_the_model_and_hooks_see_one_call(
    tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = tiny("gpt2")
    exact = lm.run(tokens, "coefficients")
    monkeypatch.setattr(fast_kernels, "CHUNK", 50)
    activation: Any = lm.hf.get_submodule("transformer.h.0.mlp.act")
    seen = []
    handle = activation.register_forward_hook(lambda _m, _a, out: seen.append(out.shape))
    try:
        with chunked_gelu(lm):
            assert "forward" in vars(activation)
            found = lm.run(tokens, "coefficients")
    finally:
        handle.remove()
    assert torch.equal(found["coefficients"], exact["coefficients"]) and torch.equal(found.logits, exact.logits)
    assert seen == [exact["coefficients"][0].shape]
    assert "forward" not in vars(activation)


def test_an_activation_that_another_library_replaced_is_left_alone() -> None:
    lm = tiny("gpt2")
    activation: Any = lm.hf.get_submodule("transformer.h.0.mlp.act")
    activation.forward = mine = lambda x: x
    try:
        with chunked_gelu(lm):
            assert activation.forward is mine
        assert activation.forward is mine
    finally:
        del activation.forward

"""The fast pass: near the exact one, by a difference that is stated, and gone when it is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import tiny
from tests.families import DENSE
from tests.sweeps.recorder import Everything, lettered, texts
from tests.sweeps.test_checkpoint import same
from unembed.corpus import open_corpus
from unembed.errors import CheckpointFault, InvalidInput, Unsupported
from unembed.sweeps import TopTriggers, fast_difference, fast_kernels, sweep
from unembed.sweeps.fast_kernels import quickened

BFLOAT16 = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
needs_bfloat16 = pytest.mark.skipif(not BFLOAT16, reason="this processor does not multiply in bfloat16")
MODES = ["float32", pytest.param("bfloat16", marks=needs_bfloat16)]


def coefficients(family: str, mode: Any) -> torch.Tensor:
    values, _ = sweep(lettered(family), texts(6), [Everything()], tokens_per_batch=150, fast=mode)[0]
    return torch.stack(values)


@pytest.mark.parametrize("family", DENSE)
def test_other_kernels_change_rounding_only(family: str, tokens: torch.Tensor) -> None:
    lm = tiny(family)
    exact = lm.run(tokens, "coefficients")
    with quickened(lm, "float32"):
        found = lm.run(tokens, "coefficients")
    torch.testing.assert_close(found["coefficients"], exact["coefficients"], rtol=1e-4, atol=1e-5)
    again = lm.run(tokens, "coefficients")
    assert torch.equal(again.logits, exact.logits), "the model is as it was"
    assert not any("forward" in vars(module) for module in lm.hf.modules())


@pytest.mark.parametrize("mode", MODES)
def test_the_difference_is_what_it_says(mode: Any) -> None:
    lm = lettered("gpt2")
    corpus = open_corpus(texts(6))
    batches = list(corpus.batches(lm, 10_000))
    assert len(batches) == 1
    exact, found = (sweep(lm, corpus, [Everything()], tokens_per_batch=10_000, fast=m)[0][0] for m in (None, mode))
    told = fast_difference(lm, batches[0], mode)
    assert told == pytest.approx(
        max(float((f - e).abs().max() / e.abs().max()) for e, f in zip(exact, found, strict=True)), rel=1e-6
    )
    assert 0 < told < {"float32": 1e-5, "bfloat16": 0.05}[mode]


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


def test_modules_that_others_have_taken_over_are_left_to_them() -> None:
    lm = lettered("opt")
    module = lm.hf.get_decoder().layers[0].fc1
    theirs = module.forward
    module.forward = lambda x: theirs(x)
    mine = module.forward
    try:
        with quickened(lm, "float32"):
            assert module.forward is mine
            assert "forward" in vars(lm.hf.get_decoder().layers[0].fc2)
        assert module.forward is mine
    finally:
        del module.forward


def test_what_cannot_be_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="none of float32, bfloat16"):
        fast_kernels.checked(lettered("opt"), "int8")
    monkeypatch.setattr(fast_kernels.torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(Unsupported, match="does not multiply in bfloat16"):
        sweep(lettered("opt"), ["abc"], [TopTriggers(5)], fast="bfloat16")
    sweep(lettered("opt"), ["abc"], [TopTriggers(5)], fast="float32")  # without oneDNN the products stay torch's own

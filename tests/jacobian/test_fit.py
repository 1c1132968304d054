"""The fitted Jacobian against finite differences of the model itself, on every kind of block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import unembed
from tests.families import FAMILIES, build
from tests.models.decoder_classes import tiny_model
from tests.sweeps.ray.fake_ray import FakeRay
from tests.sweeps.recorder import lettered, texts
from unembed.corpus.segments import Batch, Segment
from unembed.errors import CheckpointFault, InvalidInput, Unsupported
from unembed.jacobian import JacobianLens, fit_lens
from unembed.jacobian.sums import JacobianSums, LensMeans
from unembed.models.decoder import Decoder
from unembed.stream.capture_points import has_point
from unembed.sweeps import CheckpointInterval, Ray
from unembed.sweeps.ray import engine as ray_engine

TOKENS = torch.tensor([5, 9, 17, 3, 22, 41, 8])
STEP = 1e-4
"""Small enough that no router chooses other experts."""
HYBRIDS = (
    "jamba", "bamba", "falcon_h1", "granitemoehybrid", "mamba2", "rwkv", "lfm2", "recurrent_gemma", "minimax",
    "nemotron_h", "deepseek_v3", "gpt_oss", "gemma4_text",
)  # fmt: skip
"""Classes of transformers with states, latent attention, or experts, beside the families."""


def jacobians(lm: Decoder) -> LensMeans:
    sums = JacobianSums()
    sums.start(lm)
    sums.update(batch_of(TOKENS))
    return sums.result()


def batch_of(tokens: Tensor, number: int = 0) -> Batch:
    return Batch.of(number, [Segment(number, 0, 0, 0, 0, 0, tokens)])


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


def in_float64(family: str) -> unembed.LanguageModel:
    if family in FAMILIES:
        return unembed.load(build(family, torch.float64))
    model = tiny_model(family).double()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # grouped products refuse float64
    return unembed.load(model)


@pytest.mark.parametrize("family", (*FAMILIES, *HYBRIDS))
def test_the_jacobian_is_what_adding_a_vector_does_to_the_last_stream(family: str) -> None:
    lm = in_float64(family)
    sums = jacobians(lm)
    made = torch.Generator().manual_seed(0)
    for layer in range(lm.n_layers):
        for point, found in (("resid_pre", sums.before), ("resid_mid", sums.middle)):
            assert found is not None or point == "resid_mid"
            if found is None or (point == "resid_mid" and not has_point(lm, point, layer)):
                continue
            by = torch.randn(lm.d_model, dtype=torch.float64, generator=made)
            at = "attn_out" if point == "resid_mid" else point  # what attention adds, resid_mid has more of
            here = moved(lm, at, layer, STEP * by) - moved(lm, at, layer, -STEP * by)
            # float32 norms inside a float64 model limit what a finite difference can show.
            expected = (here / (2 * STEP)).float()
            allowed = 5e-3 * float(expected.abs().max())
            torch.testing.assert_close(by.float() @ found[layer], expected, rtol=0, atol=allowed)
            assert not torch.allclose(by.float() @ found[layer].T, expected, rtol=0, atol=allowed)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_half_precision_gives_the_same_jacobian_to_its_own_rounding(family: str) -> None:
    whole, half = (jacobians(unembed.load(build(family, dtype))) for dtype in (torch.float32, torch.bfloat16))
    missed = (whole.before - half.before).norm() / whole.before.norm()
    assert float(missed) < 0.05


def test_without_a_cache_whole_contexts_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = unembed.load(build("llama"))
    cached = jacobians(lm)
    monkeypatch.setattr("unembed.jacobian.sums.cache_of", lambda *_: None)
    torch.testing.assert_close(jacobians(lm).before, cached.before, rtol=1e-4, atol=1e-5)


def test_a_text_that_is_too_short_is_refused() -> None:
    lm = unembed.load("attn-1l")
    with pytest.raises(InvalidInput, match="a lens needs at least two"):
        fit_lens(lm, ["A few words."], contexts=4, length=32)


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(Unsupported, match="it does not have layers"):
        fit_lens(unembed.load("attn-0l"), contexts=4, length=32)


@pytest.mark.parametrize("family", ["gemma3n_text", "deepseek_v4"])
def test_models_with_several_streams_are_refused(family: str) -> None:
    with pytest.raises(Unsupported, match="it does not have one stream"):
        fit_lens(unembed.load(tiny_model(family)), contexts=4, length=32)


def test_a_pass_without_a_derivative_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = lettered("llama")
    forward = lm.hf.model.layers[1].mlp.forward
    monkeypatch.setattr(lm.hf.model.layers[1].mlp, "forward", lambda x: in_place(forward(x)))
    with pytest.raises(Unsupported, match=r"a Jacobian lens of .*: its forward pass cannot be differentiated"):
        small_fit(lm)


def in_place(x: Tensor) -> Tensor:
    """The tensor, overwritten after autograd saved what it needs of it."""
    y = x.exp()
    y.add_(1)
    return y.log()


LENGTH = 10


def small_fit(lm: unembed.LanguageModel | None = None, contexts: int = 6, **options: Any) -> JacobianLens:
    return fit_lens(lettered("llama") if lm is None else lm, texts(40), contexts, LENGTH, **options)


def same(a: JacobianLens, b: JacobianLens, rtol: float = 1e-4) -> None:
    for name in ("before", "middle", "mean_before", "mean_middle", "mean_final", "scale", "contexts"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=rtol, atol=rtol / 10)


def test_merged_parts_are_the_fit_over_all_contexts() -> None:
    whole = small_fit(contexts=9)
    parts = [small_fit(contexts=count, first=first) for first, count in ((0, 2), (2, 4), (6, 3))]
    assert not torch.allclose(parts[0].before, whole.before, rtol=1e-2)
    merged = parts[0].merged(*parts[1:])
    same(merged, whole)
    same(parts[2].merged(parts[0]).merged(parts[1]), whole)
    assert merged.tokens_read == whole.tokens_read and merged.provenance.notes["contexts"] == 9


def test_parts_that_do_not_fit_together_are_refused() -> None:
    one = small_fit()
    with pytest.raises(InvalidInput, match="one ends at window 6 of the text, another starts at window 4"):
        one.merged(small_fit(first=4))
    with pytest.raises(InvalidInput, match="they differ in length: 10, 8"):
        one.merged(fit_lens(lettered("llama"), texts(40), 2, 8, first=30))
    with pytest.raises(InvalidInput, match="they differ in fingerprint"):
        one.merged(small_fit(lettered("gpt2"), first=6))
    with pytest.raises(InvalidInput, match="there is nothing to merge it with"):
        one.merged()


def test_an_interrupted_fit_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, path, often = small_fit(), tmp_path / "lens.progress", CheckpointInterval(batches=1)
    update, fed = JacobianSums.update, list[int]()

    def stopped(sums: JacobianSums, batch: Batch) -> None:
        if len(fed) == 4:
            fed.append(-1)
            raise KeyboardInterrupt
        fed.append(batch.number)
        update(sums, batch)

    monkeypatch.setattr(JacobianSums, "update", stopped)
    with pytest.raises(KeyboardInterrupt):
        small_fit(checkpoint=path, every=often)
    same(small_fit(checkpoint=path, every=often), whole, rtol=0)
    assert fed == [0, 1, 2, 3, -1, 4, 5]
    same(small_fit(checkpoint=path), whole, rtol=0)  # finished: nothing is run
    assert fed[-1] == 5
    with pytest.raises(CheckpointFault, match="it belongs to another sweep: its corpus"):
        small_fit(checkpoint=path, contexts=5)


@pytest.mark.parametrize("how", [{}, {"mortal": 3}, {"leaky": 2}], ids=str)
def test_on_ray_the_lens_is_the_same(how: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    made = FakeRay(**how)
    monkeypatch.setattr(ray_engine, "import_ray", lambda: made)
    same(small_fit(engine=Ray(batches_per_shard=1)), small_fit())
    assert made.merges >= 5


def test_half_precision_is_kept_where_numbers_fit() -> None:
    whole, half = small_fit(), small_fit(dtype=torch.float16)
    assert half.before.dtype == torch.float16 and half.check is not None and whole.check is not None
    torch.testing.assert_close(half.before.float(), whole.before, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(half.check.kl, whole.check.kl, rtol=1e-2, atol=1e-3)
    whole.before[0, 0, 0] = 1e6
    assert whole.in_dtype(torch.float16).before.dtype == torch.float32

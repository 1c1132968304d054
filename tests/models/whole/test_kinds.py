"""Each kind of architecture beside the plain one: half precision, padding, attention kernels, cache and offloading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import unembed
from tests.conftest import tiny_kind
from tests.models.decoder_classes import tiny_model
from tests.sweeps.recorder import lettered
from unembed.errors import ModelNotUnderstood, Unsupported
from unembed.language_model import LanguageModel, load
from unembed.logit_attribution import attribution, kinds_of, points_needed
from unembed.names import SUM_TOLERANCE
from unembed.steering.text_cost import perplexity
from unembed.stream.interventions import Edit
from unembed.stream.run import run

LATENT = ("deepseek_v3", "youtu", "axk2")
GATED = ("qwen3_5_text", "afmoe")
LINEAR = ("nemotron_h", "minimax", "falcon_h1", "lfm2")
STREAMS = ("gemma3n_text", "deepseek_v4", "hy_v4", "qwen4_exp_text")
RESCALED = ("gemma4_text", "doge", "gpt_neox_japanese")
EXPERTS = ("gpt_oss", "mixtral")
BY_SOURCE = (*LATENT, *GATED, *LINEAR, *STREAMS, *RESCALED, *EXPERTS, "kimi_linear", "olmo_hybrid", "recurrent_gemma")
OTHERS = ("diffllama", "mamba2", "xlstm", "zamba", "zamba2", "zaya")
"""Two softmaxes a head, recurrent layers without attention weights, a mixer shared by layers, gains per channel."""
NO_HEADS = ("rwkv", "mamba", "falcon_mamba", "jetmoe", "inkling_text")
KINDS = (*BY_SOURCE, *OTHERS, *NO_HEADS)
NO_ATTENTION = ("rwkv", "mamba", "falcon_mamba", "mamba2", "xlstm")
ONE_KERNEL = ("deepseek_v4", "hy_v4", "gpt_oss")
"""Kinds for which transformers has the eager attention alone."""


def _edits(lm: LanguageModel) -> list[Edit]:
    """The first head of the first layer that has several, or half of what the mixer of layer 1 writes."""
    layers = [n for n, b in enumerate(lm.structure.blocks) if b.mixer is not None and b.mixer.n_heads > 1]
    return [unembed.scale_head(layers[0], 1, 0.0)] if layers else [unembed.scale_attention(1, 0.0)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model_type", [kind for kind in KINDS if kind != "zaya"])
def test_sums_close_in_half_precision(model_type: str, dtype: torch.dtype, tokens: Tensor) -> None:
    lm = load(tiny_model(model_type).to(dtype))
    tolerance = SUM_TOLERANCE[str(dtype).removeprefix("torch.")]
    whole, *parts = (attribution(lm, tokens[:1], 11, by=by) for by in kinds_of(lm))
    assert whole.error <= tolerance and (len(parts) == 2 or model_type not in BY_SOURCE)
    largest = float(whole.contribution.abs().max())
    for part in parts:
        assert part.error <= tolerance
        for layer in range(lm.n_layers):
            sums = [float(a.contribution[a.layer == layer].sum()) for a in (whole, part)]
            assert sums[0] == pytest.approx(sums[1], abs=tolerance * max(largest, abs(sums[0])))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gains_per_channel_that_drown_in_rounding_are_refused_with_the_way_on(dtype: torch.dtype) -> None:
    with pytest.raises(ModelNotUnderstood, match=r"Load with dtype='float32': in half precision, rounding errors hide"):
        load(tiny_model("zaya").to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_recurrent_state_in_half_precision_is_that_of_the_models_own_cache(dtype: torch.dtype) -> None:
    """xLSTM: without a cache, its kernel for whole chunks fails on a float32 state beside half precision."""
    lm, prompt, other = load(tiny_model("xlstm").to(dtype)), torch.arange(3, 28)[None], torch.arange(4, 29)[None]
    assert prompt.shape[1] > 3 * lm.hf.config.chunk_size
    with torch.no_grad():
        own, theirs = (lm.hf(ids, use_cache=True).logits for ids in (prompt, other))
    assert torch.equal(run(lm, prompt).logits, own)
    surprise = torch.nn.functional.cross_entropy(own[0, :-1].float(), prompt[0, 1:])
    assert perplexity(lm, prompt) == pytest.approx(float(surprise.exp()), rel=1e-5)
    patched = lm.patch(prompt, other, "resid_post", unembed.logit_difference(11, 23))
    for found, logits in ((patched.clean, own), (patched.corrupted, theirs)):
        assert found == pytest.approx(float(logits[0, -1, 11] - logits[0, -1, 23]), rel=1e-6)
    metric = unembed.logit_difference(11, 23)
    estimate = lambda: unembed.attribution_patching(lm, prompt, metric)  # noqa: E731
    for question in (lambda: run(lm, prompt, "attn_out", grad=True), estimate):
        with pytest.raises(Unsupported, match=r"gradients of .*overwrites its recurrent state.*dtype='float32'"):
            question()


READS_LEFT_PADDING = ("deepseek_v4", "recurrent_gemma", "rwkv", "xlstm")


@pytest.mark.parametrize(
    ("model_type", "side"),
    [(kind, side) for kind in KINDS for side in ("left", "right") if side == "right" or kind not in READS_LEFT_PADDING],
)
def test_a_padded_row_holds_what_it_holds_alone(model_type: str, side: str, tokens: Tensor) -> None:
    lm = tiny_kind(model_type)
    row, filling = tokens[:1, :5], torch.zeros(1, 4, dtype=torch.long)
    real = torch.cat([torch.zeros_like(filling), torch.ones_like(row)], 1)
    padded = torch.cat([filling, row], 1)
    if side == "right":
        padded, real = padded.roll(5, 1), real.roll(5, 1)
    points = ["resid_post", "attn_out"]
    together = run(lm, torch.cat([padded, tokens[1:2, :9]]), points, _edits(lm), attention_mask=_with_row(real))
    own = _alone(lm, padded, real, _edits(lm))
    torch.testing.assert_close(together.logits[:1][real.bool()], own[real.bool()], rtol=2e-4, atol=2e-4)
    assert bool(torch.isfinite(together.at("resid_post", lm.n_layers - 1)).all())


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("model_type", KINDS)
def test_padding_leaves_a_row_as_it_is_without_any(model_type: str, side: str, tokens: Tensor) -> None:
    lm = tiny_kind(model_type)
    row, filling = tokens[:1, :5], torch.zeros(1, 4, dtype=torch.long)
    parts = ((filling, 0), (row, 1)) if side == "left" else ((row, 1), (filling, 0))
    ids, mask = torch.cat([t for t, _ in parts], 1), torch.cat([torch.full_like(t, real) for t, real in parts], 1)
    if side == "left" and model_type in READS_LEFT_PADDING:
        with pytest.raises(Unsupported, match=r"padding on the left with .*mask hides.*Pad on the right"):
            run(lm, ids, attention_mask=mask)
        with torch.no_grad():
            theirs = lm.hf(ids, attention_mask=mask, use_cache=False).logits[:, 4:]
        assert not torch.allclose(theirs, run(lm, row).logits, atol=1e-2)  # else the family's row is out of date
    else:
        logits = run(lm, ids, attention_mask=mask).logits[mask.bool()]
        torch.testing.assert_close(logits, run(lm, row).logits[0], rtol=0, atol=1e-5)
        for by in kinds_of(lm):
            padded = attribution(lm, run(lm, ids, points_needed(lm, by), attention_mask=mask), 11, by=by)
            alone = attribution(lm, row, 11, by=by)
            torch.testing.assert_close(padded.contribution, alone.contribution, rtol=1e-4, atol=1e-5)


def test_a_batch_of_continuations_is_refused_where_padding_would_be_read() -> None:
    lm = load(tiny_model("recurrent_gemma"), tokenizer=lettered("gpt2").tokenizer)
    with pytest.raises(Unsupported, match="one at a time"):
        lm.generate(["abc", "abcd"], max_new_tokens=2)
    assert len(lm.generate(["abc", "abd"], max_new_tokens=2)) == 2  # of equal length there is no padding


def _with_row(real: Tensor) -> Tensor:
    return torch.cat([real, torch.ones_like(real)])


@torch.no_grad()
def _alone(lm: LanguageModel, padded: Tensor, real: Tensor, edits: list[Edit]) -> Tensor:
    """The model itself on the padded row alone, one head or a whole mixer silenced by a hook of our own."""
    (edit,) = edits
    site = lm.structure.blocks[edit.layer].mixer
    assert site is not None and edit.value == 0 and isinstance(edit.index, int)
    head = slice(edit.index * site.d_head, (edit.index + 1) * site.d_head)

    def silence(_module: object, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        z = args[0].clone()
        z[..., head] = 0
        return (z, *args[1:])

    def write_nothing(_module: object, _args: object, out: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        return torch.zeros_like(out) if isinstance(out, Tensor) else (torch.zeros_like(out[0]), *out[1:])

    if edit.target == "head":
        handle = site.out_proj.register_forward_pre_hook(silence)
    else:
        handle = site.output.register_forward_hook(write_nothing)
    try:
        positions = (real.cumsum(1) - 1).clamp_min(0)
        return lm.hf(padded, attention_mask=real, position_ids=positions, use_cache=False).logits
    finally:
        handle.remove()


@pytest.mark.parametrize("model_type", [kind for kind in KINDS if kind not in (*ONE_KERNEL, *NO_ATTENTION)])
def test_eager_and_fused_attention_give_the_same_attribution(model_type: str, tokens: Tensor) -> None:
    lm = load(tiny_model(model_type))
    lm.hf.set_attn_implementation("sdpa")
    # Not by source, which needs the pattern, for which every layer runs the eager attention.
    by = "component" if model_type in NO_HEADS else "head"
    fused = attribution(lm, tokens[:1], 11, by=by)
    lm.hf.set_attn_implementation("eager")
    eager = attribution(lm, tokens[:1], 11, by=by)
    torch.testing.assert_close(fused.contribution, eager.contribution, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("model_type", ONE_KERNEL)
def test_a_kind_with_the_eager_attention_alone_is_named_by_transformers(model_type: str) -> None:
    with pytest.raises(ValueError, match="does not support an attention implementation"):
        load(tiny_model(model_type)).hf.set_attn_implementation("sdpa")


@torch.no_grad()
@pytest.mark.parametrize("model_type", KINDS)
def test_a_cache_under_edits_gives_what_full_passes_give(model_type: str, tokens: Tensor) -> None:
    lm = tiny_kind(model_type)
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with lm.edited(_edits(lm)):
        cached = lm.hf.generate(tokens[:1], attention_mask=torch.ones_like(tokens[:1]), use_cache=True, **options)
    ids = tokens[:1]
    for _ in range(4):
        ids = torch.cat([ids, lm.run(ids, edits=_edits(lm)).logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(cached, ids)


USED_OUTSIDE_A_CALL = {
    "jetmoe": "model.layers.*.self_attention",
    "dbrx": "transformer.blocks.*.ffn.experts.mlp",
    "llama4_text": "model.embed_tokens",
}
"""Modules whose weights, or their device, are read without a call, so that accelerate loads them too late."""


@pytest.mark.parametrize("model_type", USED_OUTSIDE_A_CALL)
def test_weights_that_accelerate_would_not_load_in_time_are_named_and_the_rest_may_be_elsewhere(
    model_type: str, tokens: Tensor, tmp_path: Path
) -> None:
    model = tiny_model(model_type)
    model.save_pretrained(tmp_path / "model")
    options = {"offload_folder": tmp_path / "offload"}
    with pytest.raises(ModelNotUnderstood, match="outside the calls for which accelerate loads them") as refused:
        load(tmp_path / "model", device_map={"": "disk"}, **options)
    assert f"Give {USED_OUTSIDE_A_CALL[model_type]} a device in device_map" in str(refused.value)
    stays = re.compile(re.escape(USED_OUTSIDE_A_CALL[model_type]).replace(r"\*", "[0-9]+"))
    near = load(tmp_path / "model")
    away = load(tmp_path / "model", device_map=_all_but(model, stays), **options)
    stored = [name for name, own in away.hf.named_parameters() if own.is_meta]
    assert stored and not any(stays.match(name) for name in stored)
    for by in kinds_of(near):
        here, there = (attribution(lm, tokens[:1], 11, by=by).contribution for lm in (near, away))
        torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-6)


def _all_but(model: nn.Module, stays: re.Pattern[str], path: str = "") -> dict[str, str]:
    """A map with every module on disk but those at `stays`."""
    if stays.fullmatch(path):
        return {path: "cpu"}
    if next(model.children(), None) is None or next(model.parameters(recurse=False), None) is not None:
        return {path: "disk"}
    found = {}
    for name, child in model.named_children():
        found |= _all_but(child, stays, f"{path}.{name}".lstrip("."))
    return found


@pytest.mark.parametrize("model_type", [kind for kind in KINDS if kind != "jetmoe"])
def test_weights_that_are_elsewhere_give_the_same_attribution(model_type: str, tokens: Tensor, tmp_path: Path) -> None:
    tiny_model(model_type).save_pretrained(tmp_path / "model")  # perturbed buffers are not in its files
    near = load(tmp_path / "model")
    away = load(tmp_path / "model", device_map={"": "disk"}, offload_folder=tmp_path / "offload")
    for by in kinds_of(near):
        here, there = (attribution(lm, tokens[:1], 11, by=by).contribution for lm in (near, away))
        torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-6)

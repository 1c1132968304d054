"""Circuits through latents and beside output gates give the model's own values and patterns, or are refused by name."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from tests.models.decoder_classes import tiny_model
from unembed.attention.behaviour.score_terms import score_terms
from unembed.attention.circuits import circuits
from unembed.errors import InvalidInput, Unsupported
from unembed.language_model import LanguageModel, load
from unembed.stream.run import run

LATENT = {"deepseek_v2": 0, "deepseek_v3": 1, "minicpm3": 1, "youtu": 0, "axk1": 1, "glm_moe_dsa": 0, "kimi_linear": 3}
HEAD_GATES = {"bailing_hybrid": 1, "dots3_note_text": 0, "laguna": 0}
CHANNEL_GATES = {"qwen3_next": 3, "qwen3_5_text": 3, "afmoe": 1}
F64 = dict(rtol=1e-5, atol=1e-7)
"""Circuits in float64 against a model in float64 whose norms compute in float32."""


@dataclass
class Seen:
    """What the model's own modules returned on a prompt, in float64."""

    lm: LanguageModel
    x: Tensor
    latent: Tensor
    values: Tensor
    pattern: Tensor


def in_float64(model_type: str) -> LanguageModel:
    hf = tiny_model(model_type).double()
    hf.set_experts_implementation("eager")  # grouped products refuse float64
    return load(hf)


def seen(model_type: str, layer: int, tokens: Tensor) -> Seen:
    lm = in_float64(model_type)
    caught: list[Tensor] = []
    attention = lm.structure.blocks[layer].attention
    down: nn.Module = attention.module.get_submodule("kv_a_proj_with_mqa")
    handle = down.register_forward_hook(lambda _m, _a, out: caught.append(out))
    try:
        done = run(lm, tokens[:1], ("resid_pre", "pattern", "values"))
    finally:
        handle.remove()
    names = ("resid_pre", "values", "pattern")
    x, values, pattern = (done.at(name, layer)[0].double() for name in names)
    return Seen(lm, x, caught[-1][0].double(), values, pattern)


def size(x: Tensor, eps: float) -> Tensor:
    return (x.square().mean(-1, keepdim=True) + eps).sqrt()


@pytest.mark.parametrize(("model_type", "layer"), LATENT.items())
def test_ov_through_a_latent_is_what_the_model_writes_times_two_sizes(
    model_type: str, layer: int, tokens: Tensor
) -> None:
    s = seen(model_type, layer, tokens)
    site = s.lm.structure.blocks[layer].attention
    rank = s.lm.hf.config.get_text_config().kv_lora_rank
    norm = site.module.get_submodule("kv_a_layernorm")
    assert site.pre_norm is not None
    sizes = size(s.x, site.pre_norm.eps) * size(s.latent[:, :rank], norm.variance_epsilon)
    for head in range(s.lm.n_heads):
        ov = circuits(s.lm).ov(layer, head, "folded")
        written = s.values[head] @ s.lm.weights.W_O[layer][head].double() * site.multiplier
        torch.testing.assert_close(s.x @ ov.left.double() @ ov.right.double() / sizes, written, **F64)
        raw = circuits(s.lm).ov(layer, head, "raw")
        assert not torch.allclose(s.x @ raw.left.double() @ raw.right.double() / sizes, written, rtol=1e-2)
        assert any("latent's norm" in note for note in ov.notes)


@pytest.mark.parametrize(("model_type", "layer"), LATENT.items())
def test_the_two_parts_of_a_latent_key_give_the_models_pattern(model_type: str, layer: int, tokens: Tensor) -> None:
    s = seen(model_type, layer, tokens)
    site, config = s.lm.structure.blocks[layer].attention, s.lm.hf.config.get_text_config()
    inner = site.module.get_submodule("kv_a_layernorm").variance_epsilon
    assert site.pre_norm is not None
    x = s.x / size(s.x, site.pre_norm.eps)
    key_size = size(s.latent[:, : config.kv_lora_rank], inner)[:, 0]
    query_size = torch.ones(len(x), dtype=torch.float64)
    if getattr(site.module, "q_a_proj", None) is not None:
        before = site.module.q_a_proj(site.pre_norm.module(s.x))
        query_size = size(before.double(), site.module.q_a_layernorm.variance_epsilon)[:, 0]
    pos = len(x)
    for head in range(s.lm.n_heads):
        content = circuits(s.lm).qk(layer, head, basis="folded", part="content")
        scores = x @ content.left.double() @ content.right.double() @ x.T / query_size[:, None] / key_size
        for offset in range(pos):
            rotary = circuits(s.lm).qk(layer, head, offset, "folded", part="rotary")
            whole = x @ rotary.left.double() @ rotary.right.double() @ x.T / query_size[:, None]
            scores += whole.diagonal(-offset).diag_embed(-offset)
        scores = (scores * site.scores.scale).masked_fill(torch.ones(pos, pos).triu(1).bool(), -torch.inf)
        torch.testing.assert_close(scores.softmax(-1), s.pattern[head], rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("model_type", [*LATENT, *HEAD_GATES, *CHANNEL_GATES])
def test_the_terms_of_a_score_add_up_to_the_models_pattern(model_type: str, tokens: Tensor) -> None:
    layer = {**LATENT, **HEAD_GATES, **CHANNEL_GATES}[model_type]
    lm = load(tiny_model(model_type))
    found = [score_terms(lm, tokens[:1], layer, head) for head in range(lm.n_heads)]
    assert max(terms.error for terms in found) < 1e-5


@pytest.mark.parametrize(("model_type", "layer"), LATENT.items())
def test_the_whole_key_of_latent_attention_has_a_raw_circuit_only(model_type: str, layer: int) -> None:
    found = circuits(load(tiny_model(model_type)))
    parts = [found.qk(layer, 1, 3, part=part) for part in ("content", "rotary")]
    whole = found.qk(layer, 1, 3)
    summed = sum(p.left @ p.right for p in parts)
    torch.testing.assert_close(whole.left @ whole.right, summed, rtol=1e-5, atol=1e-6)
    with pytest.raises(
        Unsupported, match=r"content part of a key is divided by the norm of its latent vector.*part='content'"
    ):
        found.qk(layer, 1, basis="folded")
    with pytest.raises(InvalidInput, match="has the parts rotary and content"):
        found.qk(layer, 1, part="positional")


@pytest.mark.parametrize(("model_type", "layer"), HEAD_GATES.items())
def test_a_gate_with_one_factor_for_each_head_leaves_ov_circuits_exact_up_to_it(
    model_type: str, layer: int, tokens: Tensor
) -> None:
    lm = in_float64(model_type)
    done = run(lm, tokens[:1], ("values", "pattern", "z"))
    values, pattern, z = (done.at(name, layer)[0].double() for name in ("values", "pattern", "z"))
    values = values.repeat_interleave(len(pattern) // len(values), dim=0)
    factor = z.transpose(0, 1) / (pattern @ values)
    torch.testing.assert_close(factor, factor[..., :1].expand_as(factor), rtol=1e-4, atol=1e-6)
    assert any("factor of each position and head" in note for note in circuits(lm).ov(layer, 0, "folded").notes)


@pytest.mark.parametrize(("model_type", "layer"), CHANNEL_GATES.items())
def test_a_gate_with_a_factor_for_each_channel_leaves_the_raw_ov_circuit_only(model_type: str, layer: int) -> None:
    lm = load(tiny_model(model_type))
    found, module = circuits(lm), lm.structure.blocks[layer].attention.module
    raw, head = found.ov(layer, 3), slice(3 * lm.d_head, 4 * lm.d_head)
    assert torch.equal(raw.left, module.v_proj.weight[lm.d_head : 2 * lm.d_head].T)  # two query heads share one value
    assert torch.equal(raw.right, module.o_proj.weight[:, head].T)
    assert any("gate of each position and channel" in note for note in raw.notes)
    with pytest.raises(Unsupported, match=r"folded OV circuits of layer.*a gate of each position and channel"):
        found.ov(layer, 3, "folded")
    with pytest.raises(Unsupported, match=r"a gate of each position and channel"):
        _ = lm.weights.W_V[layer]


def test_what_no_latent_explains_is_refused_by_name() -> None:
    found = circuits(load(tiny_model("axk2")))
    assert found.ov(1, 0).left.shape == (64, 16)
    with pytest.raises(Unsupported, match="a gate of each position and channel"):
        found.ov(1, 0, "folded")
    with pytest.raises(Unsupported, match="read from a latent with and without its norm"):
        found.qk(1, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model_type", ["deepseek_v3", "minicpm3", "qwen3_5_text"])
def test_circuits_of_half_precision_weights_are_those_of_the_same_numbers(
    model_type: str, dtype: torch.dtype, tokens: Tensor
) -> None:
    layer = {**LATENT, **CHANNEL_GATES}[model_type]
    half, whole = load(tiny_model(model_type).to(dtype)), load(tiny_model(model_type).to(dtype).float())
    basis = "raw" if model_type in CHANNEL_GATES else "folded"
    part = None if model_type in CHANNEL_GATES else "content"
    mine, theirs = map(circuits, (half, whole))
    for a, b in (
        (mine.ov(layer, 1, basis), theirs.ov(layer, 1, basis)),
        (mine.qk(layer, 1, 2, basis, part=part), theirs.qk(layer, 1, 2, basis, part=part)),
    ):
        assert a.left.shape == b.left.shape
        found, expected = a.left.float() @ a.right.float(), b.left @ b.right
        assert float((found - expected).norm() / expected.norm()) < 4 * torch.finfo(dtype).eps
    limit = 30 * torch.finfo(dtype).eps
    assert score_terms(half, tokens[:1], layer, 1).error < limit

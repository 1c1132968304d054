"""The structure found by data flow, proved on the model's own tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.conftest import tiny
from tests.families import DENSE, FAMILIES, PARALLEL, build
from tests.models.decoder_classes import tiny_model
from unembed.attention.weights.folded_weights import reading_weights
from unembed.errors import ModelNotUnderstood, NotFinite, PointMissing, Unsupported
from unembed.language_model import LanguageModel, load
from unembed.logit_attribution import attribution
from unembed.stream.run import run

F32 = dict(rtol=1e-4, atol=1e-4)


def test_the_stream_is_the_sum_of_what_the_blocks_add(any_lm: LanguageModel, tokens: torch.Tensor) -> None:
    points = ["resid_pre", "resid_post", "attn_out"]
    has_ffn = any_lm.structure.blocks[0].feed_forward is not None
    done = run(any_lm, tokens, [*points, *(["mlp_out"] if has_ffn else [])])
    added = done["attn_out"] + (done["mlp_out"] if has_ffn else 0)
    torch.testing.assert_close(done["resid_pre"] + added, done["resid_post"], **F32)
    assert float(done["attn_out"].norm()) > 0.01 * float(done["resid_pre"].norm())


@pytest.mark.parametrize("name", DENSE)
def test_sub_updates_and_bias_give_the_down_projection(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    done = run(lm, tokens, ["coefficients", "mlp_out", "resid_pre"])
    for layer in range(lm.n_layers):
        site = lm.feed_forward(layer)
        update = done["coefficients"][layer] @ lm.weights.W_out[layer]
        if (bias := lm.weights.b_out[layer]) is not None:
            update = update + bias
        if site.branch_norm is not None:
            update = site.branch_norm.module(update)
        torch.testing.assert_close(update * site.multiplier, done["mlp_out"][layer], **F32)


@pytest.mark.parametrize("name", DENSE)
def test_coefficients_follow_from_keys_gates_and_activation(name: str, tokens: torch.Tensor) -> None:
    from transformers.activations import ACT2FN

    lm = tiny(name)
    point = "resid_pre" if lm.structure.blocks[0].parallel else "resid_mid"
    done = run(lm, tokens, ["coefficients", point])
    w = lm.weights
    for layer in range(lm.n_layers):
        site = lm.feed_forward(layer)
        x = done[point][layer]
        read = site.pre_norm.module(x) if site.pre_norm else x
        up = read @ w.W_in[layer] + (0 if w.b_in[layer] is None else w.b_in[layer])
        act = ACT2FN[site.activation]
        if site.is_gated:
            gate = read @ w.W_gate[layer] + (0 if w.b_gate[layer] is None else w.b_gate[layer])
            activated = act(gate) * up
        else:
            activated = act(up)
        torch.testing.assert_close(activated, done["coefficients"][layer], **F32)


def test_heads_add_up_to_what_attention_adds(any_lm: LanguageModel, tokens: torch.Tensor) -> None:
    done = run(any_lm, tokens, ["z", "attn_out"])
    for layer in range(any_lm.n_layers):
        site = any_lm.structure.blocks[layer].attention
        written = torch.einsum("bphd,hdm->bpm", done["z"][layer], any_lm.weights.W_O[layer])
        if (bias := any_lm.weights.b_O[layer]) is not None:
            written = written + bias
        if site.branch_norm is not None:
            written = site.branch_norm.module(written)
        torch.testing.assert_close(written * site.multiplier, done["attn_out"][layer], **F32)


@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "falcon-rw"])
def test_the_pattern_and_value_weights_give_z(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    done = run(lm, tokens, ["z", "pattern", "resid_pre"])
    for layer in range(lm.n_layers):
        site = lm.structure.blocks[layer].attention
        x = done["resid_pre"][layer]
        read = site.pre_norm.module(x) if site.pre_norm else x
        v = torch.einsum("bpm,hmd->bhpd", read, lm.weights.W_V[layer])
        if (bias := lm.weights.b_V[layer]) is not None:
            v = v + bias[:, None]
        if site.clip is not None:
            v = v.clamp(-site.clip, site.clip)
        z = done["pattern"][layer] @ v.repeat_interleave(site.queries_per_kv, dim=1)
        torch.testing.assert_close(z.transpose(1, 2), done["z"][layer], **F32)


@pytest.mark.parametrize("name", [n for n in FAMILIES if n not in ("falcon-rw", "attention-only")])
def test_the_score_formula_gives_the_pattern(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    done = run(lm, tokens, ["pattern", "resid_pre"])
    for layer in range(lm.n_layers):
        site = lm.structure.blocks[layer].attention
        assert site.scores.understood
        if site.scores.q_norm is not None:
            continue
        x = done["resid_pre"][layer]
        read = site.pre_norm.module(x) if site.pre_norm else x
        q = torch.einsum("bpm,hmd->bhpd", read, lm.weights.W_Q[layer])
        k = torch.einsum("bpm,hmd->bhpd", read, lm.weights.W_K[layer])
        if (b := lm.weights.b_Q[layer]) is not None:
            q = q + b[:, None]
        if (b := lm.weights.b_K[layer]) is not None:
            k = k + b[:, None]
        if site.clip is not None:
            q, k = q.clamp(-site.clip, site.clip), k.clamp(-site.clip, site.clip)
        where = torch.arange(tokens.shape[1])
        if site.scores.rotary is not None:
            q, k = site.scores.rotary.rotate(q, where), site.scores.rotary.rotate(k, where)
        scores = site.scores.scale * q @ k.repeat_interleave(site.queries_per_kv, dim=1).transpose(-1, -2)
        if site.scores.softcap is not None:
            scores = site.scores.softcap * torch.tanh(scores / site.scores.softcap)
        if site.scores.alibi_slopes is not None:
            scores = scores + site.scores.alibi_slopes[:, None, None].to(scores) * where
        hidden = where[:, None] < where
        if site.scores.window is not None:
            hidden = hidden | (where[:, None] - where >= site.scores.window)
        pattern = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        torch.testing.assert_close(pattern, done["pattern"][layer], **F32)


@pytest.mark.parametrize("family", DENSE)
def test_parallel_and_sequential_blocks_are_distinguished(family: str) -> None:
    assert tiny(family).structure.blocks[0].parallel == (family in PARALLEL)


def test_multipliers_and_soft_caps_are_exact() -> None:
    granite, gemma, cohere = tiny("granite").structure, tiny("gemma2").structure, tiny("cohere").structure
    assert (granite.embedding_scale, granite.logit_scale, granite.blocks[0].attention.multiplier) == (3.0, 0.5, 0.5)
    assert (
        gemma.embedding_scale == 48**0.5
        and gemma.logit_softcap == 3.0
        and gemma.blocks[0].attention.scores.softcap == 5.0
    )
    assert cohere.logit_scale == 0.25


def test_weights_are_views(any_lm: LanguageModel) -> None:
    w = any_lm.weights
    storages = {p.untyped_storage().data_ptr() for p in any_lm.hf.parameters()}
    views = [w.W_E, w.W_U, w.W_K[0], w.W_V[0], w.W_O[0]]
    if any_lm.d_mlp:
        views += (
            []
            if any_lm.feed_forward(0).experts
            else [w.W_in[0], w.W_out[0], *([w.W_gate[0]] if w.W_gate[0] is not None else [])]
        )
    if any_lm.name != "falcon-40b":  # grouped and fused: its queries cannot be one strided view
        views.append(w.W_Q[0])
    assert all(v.untyped_storage().data_ptr() in storages for v in views)


def test_a_norm_is_linear_once_its_scale_is_frozen(any_lm: LanguageModel, tokens: torch.Tensor) -> None:
    done = run(any_lm, tokens, ["resid_pre"])
    for block, x in zip(any_lm.structure.blocks, done["resid_pre"], strict=True):
        norm = block.attention.pre_norm
        if norm is None:
            continue
        scale = norm.scale(x)
        a, b = x * 0.3 + 1, x * 0.7 - 1
        whole = norm.frozen(a, scale) + norm.frozen(b, scale) + (0 if norm.bias is None else norm.bias)
        torch.testing.assert_close(whole, norm.module(x), rtol=1e-4, atol=1e-4)
        direction = torch.randn(x.shape[-1], generator=torch.Generator().manual_seed(2))
        pulled = (a * norm.pulled_back(direction, scale)).sum(-1)
        torch.testing.assert_close(pulled, norm.frozen(a, scale) @ direction, rtol=1e-4, atol=1e-3)


def test_what_a_gated_channel_mix_writes_is_the_gate_times_coefficients_times_values(tokens: torch.Tensor) -> None:
    lm = load(tiny_model("rwkv"))
    seen = run(lm, tokens[:1], ["coefficients", "channel_gate", "mlp_out"])
    for layer, block in enumerate(lm.hf.rwkv.blocks):
        own = block.feed_forward
        assert torch.equal(lm.weights.W_out[layer], own.value.weight.T)
        assert (seen.at("coefficients", layer) >= 0).all()  # a squared ReLU
        written = seen.at("channel_gate", layer) * own.value(seen.at("coefficients", layer))
        torch.testing.assert_close(written, seen.at("mlp_out", layer), rtol=0, atol=0)
    with pytest.raises(Unsupported, match="known activation"):
        lm.weights.W_in[0]  # keys read a mixture of this position and the one before


class _ThirdWriter(nn.Module):
    """A block that adds something no one watches."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.self_attn, self.mlp = block.self_attn, block.mlp
        self.input_layernorm, self.post_attention_layernorm = block.input_layernorm, block.post_attention_layernorm
        if hasattr(block, "attention_type"):
            self.attention_type = block.attention_type

    def forward(self, hidden_states: torch.Tensor, **kwargs: object) -> torch.Tensor:
        return self.block(hidden_states, **kwargs) + 0.1 * hidden_states.roll(1, -1)


def test_a_block_with_a_third_writer_is_refused() -> None:
    model = build("llama")
    model.model.layers[1] = _ThirdWriter(model.model.layers[1])
    with pytest.raises(ModelNotUnderstood, match="something else is added"):
        load(model)


def _squashed(norm: nn.Module) -> None:
    norm.forward = lambda x: type(norm).forward(norm, x).tanh()


def test_a_final_norm_that_is_neither_kind_is_refused() -> None:
    model = build("llama")
    _squashed(model.model.norm)
    with pytest.raises(ModelNotUnderstood, match="neither LayerNorm nor RMSNorm"):
        load(model)


def test_a_norm_before_attention_that_is_neither_kind_refuses_what_goes_through_it(tokens: torch.Tensor) -> None:
    model = build("llama")
    _squashed(model.model.layers[0].input_layernorm)
    lm = load(model)
    assert attribution(lm, tokens[:1], 3, by="source").error < 1e-4
    with pytest.raises(Unsupported, match="neither LayerNorm nor RMSNorm"):
        reading_weights(lm, 0, "k", "folded")


def test_attention_without_weights_opens_with_heads_and_explains_how_to_get_sources(
    monkeypatch: pytest.MonkeyPatch, tokens: torch.Tensor
) -> None:
    # As Nemotron's before transformers 5.13.0, which keeps the class of attention that it was built with.
    hf = build("llama")
    attention = type(hf.model.layers[0].self_attn)
    forward = attention.forward
    monkeypatch.setattr(attention, "forward", lambda *given, **named: (forward(*given, **named)[0], None))
    lm = load(hf)
    assert attribution(lm, tokens[:1], 11, by="head").error < 1e-4
    with pytest.raises(PointMissing, match=r'attn_implementation="eager".*5\.13\.0'):
        attribution(lm, tokens[:1], 11, by="source")
    with pytest.raises(Unsupported, match="returns no weights"):
        lm.weights.W_V[0]


def test_nan_weights_are_refused() -> None:
    model = build("gpt2")
    with torch.no_grad():
        model.transformer.h[1].mlp.c_proj.weight[0, 0] = torch.nan
    with pytest.raises(NotFinite, match="NaN or infinity"):
        load(model)


def test_a_model_that_normalises_the_stream_itself_is_refused_by_name() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model("openai-gpt", vocab_size=97, n_embd=48, n_layer=2, n_head=4)
    with pytest.raises(ModelNotUnderstood, match="post-norm"):
        load(AutoModelForCausalLM.from_config(config).eval())


def test_a_model_without_architectures_in_its_config_opens() -> None:
    model = build("qwen2")
    model.config.architectures = None
    assert load(model).n_layers == 2


def test_bfloat16_models_open() -> None:
    lm = load(build("llama", torch.bfloat16))
    assert lm.dtype == torch.bfloat16 and lm.structure.blocks[0].attention.multiplier == 1.0

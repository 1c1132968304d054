"""Queries, keys, values, gates and what attention and FFN read: the model's own tensors at every family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers.activations import ACT2FN

from tests.conftest import tiny
from tests.families import FAMILIES
from unembed.errors import InvalidInput, PointMissing, Unsupported
from unembed.language_model import LanguageModel
from unembed.names import POINTS
from unembed.stream.capture_points import has_point
from unembed.stream.run import run

NEW = ("attn_in", "mlp_in", "q", "k", "v", "gate", "up")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", list(FAMILIES))
def test_queries_keys_and_values_are_what_attention_reads_times_the_weights(
    name: str, dtype: torch.dtype, tokens: torch.Tensor
) -> None:
    lm = tiny(name, dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for layer in range(lm.n_layers):
        if not has_point(lm, "v", layer):
            continue
        seen = run(lm, tokens, ["attn_in", "q", "k", "v"], layers=[layer])
        for which in "qkv":
            got = seen.at(which, layer)
            x = seen.at("attn_in", layer).double()
            if which in "qk" and lm.structure.read_positions is not None:
                continue  # queries and keys read positions that the values do not
            weight = getattr(lm.weights, f"W_{which.upper()}")[layer].double()
            bias = getattr(lm.weights, f"b_{which.upper()}")[layer]
            expected = torch.einsum("bpm,hmd->bphd", x, weight)
            expected = expected if bias is None else expected + bias.double()
            assert got.shape == (2, 9, lm.n_heads if which == "q" else lm.n_kv_heads, lm.d_head)
            assert float((got - expected).abs().max()) <= tolerance * float(expected.abs().max()), which


@pytest.mark.parametrize("name", list(FAMILIES))
def test_the_coefficients_follow_from_gate_and_up(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    for layer in range(lm.n_layers):
        if not has_point(lm, "up", layer):
            continue
        ffn = lm.structure.blocks[layer].feed_forward
        assert ffn is not None
        known = ffn.activation in ACT2FN  # its `get` returns a class, `[]` a function
        seen = run(lm, tokens, ["mlp_in", "up", "coefficients", *(["gate"] if ffn.is_gated else [])], layers=[layer])
        up, x = seen.at("up", layer), seen.at("mlp_in", layer)
        keys, bias = lm.weights.W_in[layer], lm.weights.b_in[layer]
        expected = x @ keys if bias is None else x @ keys + bias
        assert float((up - expected).abs().max()) <= 1e-4 * float(expected.abs().max())
        if known:
            activation = ACT2FN[ffn.activation]
            made = activation(seen.at("gate", layer)) * up if ffn.is_gated else activation(up)
            assert torch.allclose(made, seen.at("coefficients", layer), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_projections_are_bit_equal_to_the_modules_outputs(dtype: torch.dtype, tokens: torch.Tensor) -> None:
    lm = tiny("llama", dtype)
    own: dict[str, torch.Tensor] = {}
    block = lm.hf.model.layers[1]
    modules = {
        "q": block.self_attn.q_proj,
        "k": block.self_attn.k_proj,
        "v": block.self_attn.v_proj,
        "gate": block.mlp.gate_proj,
        "up": block.mlp.up_proj,
        "attn_in": block.input_layernorm,
        "mlp_in": block.post_attention_layernorm,
    }
    handles = [
        module.register_forward_hook(lambda _m, _a, out, point=point: own.update({point: out.clone()}))
        for point, module in modules.items()
    ]
    seen = run(lm, tokens, NEW)
    for handle in handles:
        handle.remove()
    for point, tensor in own.items():
        assert torch.equal(seen[point][1].flatten(2), tensor), point


def test_the_pattern_is_the_softmax_of_the_scores(any_lm: LanguageModel, tokens: torch.Tensor) -> None:
    layers = [n for n in range(any_lm.n_layers) if has_point(any_lm, "scores", n)]
    if not layers:
        pytest.skip("no attention")
    try:
        seen = run(any_lm, tokens, ("scores", "pattern"))
    except Unsupported:
        pytest.skip("its patterns are refused")
    for layer in layers:
        scores, pattern = seen.at("scores", layer).float(), seen.at("pattern", layer).float()
        weights = scores.softmax(-1)
        rest = pattern.sum(-1, keepdim=True)  # below 1 where an attention sink takes a part
        torch.testing.assert_close(weights * rest, pattern, atol=2e-3, rtol=2e-3)


def test_scores_are_only_read(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    with pytest.raises(InvalidInput, match="a replacement for scores"):
        run(lm, tokens, hooks={"scores": lambda t, _layer: t})
    with pytest.raises(Unsupported, match="gradients of scores"):
        run(lm, tokens, "scores", grad=True)
    assert "forward" not in vars(lm.hf.transformer.h[0].attn)


def test_a_point_that_a_layer_lacks_is_refused_with_the_one_to_use(tokens: torch.Tensor) -> None:
    with pytest.raises(PointMissing, match="its FFN has no gate"):
        run(tiny("gpt2"), tokens, "gate")
    with pytest.raises(PointMissing, match="belong to experts"):
        run(tiny("mixtral"), tokens, "up")


def test_every_point_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/python.md").read_text()
    assert [name for name in POINTS if f"| `{name}` | (" not in page] == []

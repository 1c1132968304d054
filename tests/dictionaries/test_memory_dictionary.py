"""Memories as a dictionary, against the tensors of the model's own forward pass."""

from __future__ import annotations

import bitsandbytes.nn
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

import unembed
from tests.conftest import tiny
from tests.families import _LLAMA, build
from unembed.dictionaries import MemoryDictionary
from unembed.errors import OutOfRange, Unsupported
from unembed.language_model import LanguageModel, load
from unembed.names import SignedMemory


def own(lm: LanguageModel, tokens: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """The FFN's input, the coefficients, and the down-projection's output, from one run of the model."""
    seen: list[Tensor] = []

    def note(_module: nn.Module, _args: object, out: Tensor) -> None:
        seen.append(out.clone())  # Falcon changes it in place

    down = lm.feed_forward(layer).down_proj
    assert down is not None
    handle = down.register_forward_hook(note)
    run = lm.run(tokens, ("mlp_in", "coefficients"), layers=[layer])
    handle.remove()
    return run.at("mlp_in", layer), run.at("coefficients", layer), seen[0].view(*tokens.shape, -1)


def test_every_family_decodes_to_its_own_output(any_lm: LanguageModel, tokens: Tensor) -> None:
    layer = any_lm.n_layers - 1
    site = any_lm.structure.blocks[layer].feed_forward
    if site is None or site.up_proj is None or site.channel_gate is not None:
        with pytest.raises(Unsupported):
            MemoryDictionary(any_lm, layer)
        return
    made = MemoryDictionary(any_lm, layer)
    x, coefficients, out = own(any_lm, tokens, layer)
    torch.testing.assert_close(made.encode(x), coefficients, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(made(x), out, rtol=1e-5, atol=1e-5)
    product = coefficients.double() @ made.W_dec.double() + made.b_dec.double()
    torch.testing.assert_close(product.float(), out, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gpt2", "llama", "phi3", "gemma2"])
def test_the_output_is_the_models_in_every_dtype(name: str, dtype: torch.dtype, tokens: Tensor) -> None:
    lm = tiny(name, dtype)
    x, coefficients, out = own(lm, tokens, 1)
    for split_signs in (False, True):
        made = MemoryDictionary(lm, 1, split_signs=split_signs)
        assert (made.dtype, made.cfg.dtype) == (dtype, str(dtype).removeprefix("torch."))
        features = made.encode(x)
        n = coefficients.shape[-1]
        assert torch.equal(features[..., :n] - features[..., n:] if split_signs else features, coefficients)
        assert torch.equal(made.decode(features), out)
        assert bool((features < 0).any()) != split_signs


def test_the_k_largest_sub_updates_stay() -> None:
    lm = unembed.load()
    x, coefficients, _ = own(lm, lm.encode("The war lasted from 1861"), 5)
    norms = lm.weights.W_out[5].norm(dim=-1)
    expected = torch.zeros_like(coefficients)
    for at, row in enumerate(coefficients[0]):
        by_size = sorted(range(len(row)), key=lambda i: float(row[i].abs() * norms[i]), reverse=True)
        expected[0, at, by_size[:7]] = row[by_size[:7]]
    made = MemoryDictionary(lm, 5, k=7)
    torch.testing.assert_close(made.encode(x), expected, rtol=1e-5, atol=1e-6)
    split = MemoryDictionary(lm, 5, k=7, split_signs=True).encode(x)
    assert ((split > 0).sum(-1) == 7).all()
    torch.testing.assert_close(MemoryDictionary(lm, 5, k=10**6)(x), MemoryDictionary(lm, 5)(x), rtol=0, atol=0)


@pytest.mark.parametrize("split_signs", [False, True])
def test_folded_norms_leave_the_output(split_signs: bool, tokens: Tensor) -> None:
    lm = tiny("llama")
    x, coefficients, out = own(lm, tokens, 0)
    made = MemoryDictionary(lm, 0, split_signs=split_signs)
    for _ in range(2):
        made.fold_W_dec_norm()
        torch.testing.assert_close(made.W_dec.norm(dim=-1), torch.ones(made.cfg.d_sae))
        torch.testing.assert_close(made(x), out, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(made.encode(x) @ made.W_dec + made.b_dec, out, rtol=1e-4, atol=1e-5)
    sizes = (coefficients.abs() * lm.weights.W_out[0].norm(dim=-1)).sum(-1)
    torch.testing.assert_close(made.encode(x).abs().sum(-1), sizes, rtol=1e-4, atol=1e-5)


def test_converting_it_leaves_the_model(tokens: Tensor) -> None:
    lm = load(build("llama"))
    made = MemoryDictionary(lm, 1, split_signs=True)
    down = lm.feed_forward(1).down_proj
    assert down is not None
    assert next(down.parameters()).data_ptr() in {p.data_ptr() for p in made.parameters()}
    before = lm.run(tokens).logits
    made.to(torch.bfloat16)
    assert made.cfg.dtype == "bfloat16" and made(torch.ones(2, lm.d_model)).dtype == torch.bfloat16
    assert torch.equal(lm.run(tokens).logits, before)


def test_a_feature_names_its_memory_and_sign() -> None:
    made = MemoryDictionary(tiny("llama"), -1, split_signs=True)
    n = made.cfg.d_sae // 2
    assert made.memory(3) == SignedMemory(1, 3)
    assert made.memory(n + 3) == SignedMemory(1, 3, "negative")
    assert torch.equal(made.W_dec[n + 3], -made.W_dec[3])
    with pytest.raises(OutOfRange):
        made.memory(2 * n)
    with pytest.raises(OutOfRange):
        MemoryDictionary(tiny("llama"), 2)


def test_projections_of_4_bits_encode_and_decode_as_in_the_model(tokens: Tensor) -> None:
    torch.manual_seed(0)
    sizes = {**_LLAMA, "hidden_size": 128, "head_dim": 32, "intermediate_size": 192}  # its kernels take blocks of 64
    hf = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **sizes)).eval()
    for block in hf.model.layers:
        for name, linear in block.mlp.named_children():
            if isinstance(linear, nn.Linear):
                made = bitsandbytes.nn.Linear4bit(
                    linear.in_features, linear.out_features, bias=False, compute_dtype=torch.float32, quant_type="nf4"
                )
                made.weight = bitsandbytes.nn.Params4bit(linear.weight.data, requires_grad=False, quant_type="nf4")
                setattr(block.mlp, name, made.to("cpu"))
    lm = load(hf)
    x, coefficients, out = own(lm, tokens, 1)
    memories = MemoryDictionary(lm, 1)
    assert torch.equal(memories.encode(x), coefficients)
    assert torch.equal(memories(x), out)

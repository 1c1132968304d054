"""Quantized projections are read as the matrices that they multiply by; what is not linear in x is refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import bitsandbytes.nn
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.families import _LLAMA, build
from unembed.errors import Unsupported
from unembed.language_model import load
from unembed.logit_attribution import attribution
from unembed.stream.run import run

GROUP = 16


def _pack(numbers: Tensor, bits: int) -> Tensor:
    """Unsigned numbers as 32-bit words, lowest bits first, along the last axis; plain Python integers."""
    per_word = 32 // bits
    rows = []
    for row in numbers.tolist():
        chunks = [row[w : w + per_word] for w in range(0, len(row), per_word)]
        words = [sum(n << (bits * i) for i, n in enumerate(chunk)) for chunk in chunks]
        rows.append([w - (1 << 32) if w >= 1 << 31 else w for w in words])
    return torch.tensor(rows, dtype=torch.int32)


class _Packed(nn.Module):
    """The layout of GPTQ's or AWQ's projections, with the matrix it multiplies by made before packing."""

    def __init__(self, linear: nn.Linear, layout: str, bits: int = 4) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(linear.in_features)
        self.in_features, self.out_features = d_in, d_out = linear.in_features, linear.out_features
        groups = d_in // GROUP
        numbers = torch.randint(0, 1 << bits, (d_in, d_out), generator=generator)
        zeros = torch.randint(1, 1 << bits, (groups, d_out), generator=generator)
        self.scales: Tensor
        self.register_buffer("scales", 0.02 * torch.rand(groups, d_out, generator=generator))
        group = torch.randperm(d_in, generator=generator) // GROUP if layout.startswith("gptq") else None
        if group is not None:
            self.register_buffer("g_idx", group.int())
        rows = torch.arange(d_in) // GROUP if group is None else group
        self.matrix = self.scales[rows] * (numbers - zeros[rows])
        if layout == "awq":
            order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
            shuffled = [t.unflatten(1, (-1, 8))[:, :, order].flatten(1) for t in (numbers, zeros)]
            qweight, qzeros = (_pack(t, bits) for t in shuffled)
        else:
            qweight, qzeros = _pack(numbers.T, bits).T.contiguous(), _pack(zeros - int(layout == "gptq"), bits)
        self.register_buffer("qweight", qweight)
        self.register_buffer("qzeros", qzeros)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        out = x @ self.matrix.to(x)
        return out if self.bias is None else out + self.bias


class PackedLinear(_Packed):
    """Named as such projections are."""


def _replaced(hf: PreTrainedModel, make: Callable[[nn.Linear], nn.Module]) -> PreTrainedModel:
    for module in list(hf.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and name != "lm_head":
                setattr(module, name, make(child))
    return hf.eval()


def _check(hf: PreTrainedModel, tokens: Tensor, limit: float = 1e-4) -> None:
    """Parts add up to the logit, sub-updates to what the FFN writes."""
    lm = load(hf)
    for by in ("component", "head", "source", "memory"):
        assert attribution(lm, tokens[:1], 11, by=by).error <= limit
    seen = run(lm, tokens, ["coefficients", "mlp_out"])
    for layer in range(lm.n_layers):
        total = seen.at("coefficients", layer) @ lm.weights.W_out[layer]
        bias = lm.weights.b_out[layer]
        written = seen.at("mlp_out", layer)
        total = total if bias is None else total + bias
        assert float((total - written).norm() / written.norm()) <= limit
        assert lm.weights.W_out[layer].dtype == written.dtype
        assert lm.weights.n_memories[layer] == seen.at("coefficients", layer).shape[-1]


@pytest.mark.parametrize(("layout", "bits"), [("gptq", 4), ("gptq", 8), ("gptq", 2), ("gptq_v2", 4), ("awq", 4)])
def test_packed_layouts_are_unpacked_to_the_matrix_they_stand_for(layout: str, bits: int, tokens: Tensor) -> None:
    hf = _replaced(build("llama-biases"), lambda linear: PackedLinear(linear, layout, bits))
    _check(hf, tokens)
    lm = load(hf)
    down = hf.model.layers[0].mlp.down_proj
    torch.testing.assert_close(lm.weights.W_out[0], down.matrix, rtol=1e-6, atol=1e-7)
    read = lm.structure.effective[down].layout
    assert read is not None and read.__name__ == f"_{layout}"


def test_dynamically_quantized_models_open_and_refuse_their_weights_by_name(tokens: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hf = torch.ao.quantization.quantize_dynamic(build("llama"), {nn.Linear}, dtype=torch.qint8)
    lm = load(hf)
    assert run(lm, tokens, "coefficients").at("coefficients", 0).shape[-1] == 80
    with pytest.raises(Unsupported, match=r"Linear at model\.layers\.0\.mlp\.down_proj is not linear in its input"):
        lm.weights.W_out[0]


def test_a_dynamically_quantized_ffn_leaves_attribution_by_component(tokens: Tensor) -> None:
    hf = build("llama")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for layer in hf.model.layers:
            torch.ao.quantization.quantize_dynamic(layer.mlp, {nn.Linear}, dtype=torch.qint8, inplace=True)
    lm = load(hf)
    assert attribution(lm, tokens[:1], 11).error <= 1e-4
    assert attribution(lm, tokens[:1], 11, by="head").error <= 1e-4
    with pytest.raises(Unsupported, match="is not linear in its input"):
        attribution(lm, tokens[:1], 11, by="memory")


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchao_weight_only_models_are_dequantized(bits: int, dtype: torch.dtype, tokens: Tensor) -> None:
    # transformers imports torchao wherever it is installed, and torchao prints warnings: `make parity` has it.
    quantization = pytest.importorskip("torchao.quantization")
    hf = build("llama", dtype)
    config = (
        quantization.Int8WeightOnlyConfig()
        if bits == 8
        else quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=quantization.PerGroup(GROUP))
    )
    quantization.quantize_(hf, config)
    _check(hf, tokens, 1e-4 if dtype == torch.float32 else 5e-2)
    matrix = hf.model.layers[0].mlp.down_proj.weight.dequantize().T
    torch.testing.assert_close(load(hf).weights.W_out[0], matrix, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bitsandbytes_4bit_models_add_up(kind: str, dtype: torch.dtype, tokens: Tensor) -> None:
    torch.manual_seed(0)
    sizes = {**_LLAMA, "hidden_size": 128, "head_dim": 32, "intermediate_size": 192}  # its kernels take blocks of 64
    hf = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **sizes)).to(dtype)

    def make(linear: nn.Linear) -> nn.Module:
        packed = bitsandbytes.nn.Linear4bit(
            linear.in_features, linear.out_features, bias=False, compute_dtype=dtype, quant_type=kind
        )
        packed.weight = bitsandbytes.nn.Params4bit(linear.weight.data, requires_grad=False, quant_type=kind)
        return packed.to("cpu")

    _check(_replaced(hf, make), tokens, 5e-2)  # on a CPU with bfloat16 products its kernel uses them for float32 too


def test_bitsandbytes_int8_is_refused_because_it_quantizes_activations(tokens: Tensor) -> None:

    def make(linear: nn.Linear) -> nn.Module:
        packed = bitsandbytes.nn.Linear8bitLt(
            linear.in_features, linear.out_features, bias=False, has_fp16_weights=False
        )
        packed.load_state_dict(linear.state_dict())
        return packed.to("cpu")

    lm = load(_replaced(build("llama"), make))
    assert attribution(lm, tokens[:1], 11).error <= 1e-4
    with pytest.raises(Unsupported, match=r"Linear8bitLt at model\.layers\.1\.mlp\.down_proj is not linear"):
        lm.weights.W_out[1]

"""The weights are the matrices that the model multiplies by, also where a projection is wrapped or packed."""

from __future__ import annotations

import warnings

import peft
import pytest
import torch
from torch import nn

from tests.families import build
from tests.models.decoder_classes import tiny_model
from unembed.attention.behaviour.head_scores import KINDS, head_scores
from unembed.early_exit.example_prefixes import examples_of_prefixes
from unembed.errors import Unsupported
from unembed.language_model import load
from unembed.logit_attribution import attribution
from unembed.stream.run import run

F32 = dict(rtol=1e-4, atol=1e-5)


class _LowRankAdapter(nn.Module):
    """An unmerged LoRA projection, laid out as PEFT's: `weight` is the base layer's, the product is added on top."""

    def __init__(self, base_layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base_layer.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base_layer.out_features, bias=False)})
        self.in_features, self.out_features = base_layer.in_features, base_layer.out_features

    @property
    def weight(self) -> torch.Tensor:
        return self.base_layer.weight

    @property
    def bias(self) -> torch.Tensor | None:
        return self.base_layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + 2.0 * self.lora_B["default"](self.lora_A["default"](x))


class _RoundedInput(nn.Linear):
    """A projection that quantizes its input, as dynamic int8 does: not linear in x (and NaN for zeros)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = x.abs().amax(-1, keepdim=True) / 7
        return super().forward((x / step).round() * step)


def _adapted(dtype: torch.dtype = torch.float32):
    hf = build("llama-biases", dtype)
    torch.manual_seed(3)
    for layer in hf.model.layers:
        for parent, name in ((layer.mlp, "down_proj"), (layer.mlp, "gate_proj"), (layer.self_attn, "o_proj")):
            setattr(parent, name, _LowRankAdapter(getattr(parent, name)).to(dtype))
        layer.self_attn.v_proj = _LowRankAdapter(layer.self_attn.v_proj).to(dtype)
    return hf.eval()


def test_unmerged_adapters_are_part_of_the_weights(tokens: torch.Tensor) -> None:
    lm = load(_adapted())
    for layer, block in enumerate(lm.hf.model.layers):
        wrapped = block.mlp.down_proj
        merged = wrapped.weight + 2 * wrapped.lora_B["default"].weight @ wrapped.lora_A["default"].weight
        torch.testing.assert_close(lm.weights.W_out[layer], merged.T.detach(), **F32)
        assert (
            float((merged - wrapped.weight).detach().norm() / merged.detach().norm()) > 0.05
        )  # the base alone would be wrong
        torch.testing.assert_close(lm.weights.b_out[layer], wrapped.bias.detach(), **F32)
    for by in ("head", "source", "memory"):
        assert attribution(lm, tokens[:1], 11, by=by).error < 1e-4


def test_sub_updates_of_an_adapted_model_add_up_to_what_the_ffn_writes(tokens: torch.Tensor) -> None:
    lm = load(_adapted())
    seen = run(lm, tokens, ["coefficients", "mlp_out"])
    for layer in range(lm.n_layers):
        total = seen.at("coefficients", layer) @ lm.weights.W_out[layer] + lm.weights.b_out[layer]
        torch.testing.assert_close(total, seen.at("mlp_out", layer), rtol=1e-4, atol=1e-4)


def test_an_adapted_model_in_half_precision_has_its_own_weights(tokens: torch.Tensor) -> None:
    lm = load(_adapted(torch.bfloat16))
    wrapped = lm.hf.model.layers[0].mlp.down_proj
    merged = (wrapped.weight + 2 * wrapped.lora_B["default"].weight @ wrapped.lora_A["default"].weight).T
    error = (lm.weights.W_out[0] - merged.detach()).float().norm() / merged.detach().float().norm()
    assert float(error) < 1e-2
    assert attribution(lm, tokens[:1], 11, by="memory").error < 5e-2


def test_a_projection_that_is_not_linear_is_refused_by_name(tokens: torch.Tensor) -> None:
    hf = build("llama")
    old = hf.model.layers[1].mlp.down_proj
    hf.model.layers[1].mlp.down_proj = new = _RoundedInput(old.in_features, old.out_features, bias=False)
    new.weight = old.weight
    lm = load(hf.eval())
    assert attribution(lm, tokens[:1], 11).error < 1e-4
    assert lm.weights.W_out[0].shape == (80, 48)
    with pytest.raises(Unsupported, match=r"_RoundedInput at model\.layers\.1\.mlp\.down_proj is not linear"):
        lm.weights.W_out[1]
    with pytest.raises(Unsupported, match="is not linear in its input"):
        attribution(lm, tokens[:1], 11, by="memory")


def test_plain_projections_stay_views() -> None:
    lm = load(build("gpt2"))
    assert not lm.structure.effective and not lm.structure.not_linear
    assert lm.weights.W_out[0].data_ptr() == lm.hf.transformer.h[0].mlp.c_proj.weight.data_ptr()


@pytest.mark.parametrize("use_dora", [False, True])
def test_peft_models_open_unmerged(use_dora: bool, tokens: torch.Tensor) -> None:
    hf = build("llama")
    config = peft.LoraConfig(r=4, target_modules=["down_proj", "v_proj", "o_proj"], use_dora=use_dora)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # from PEFT's own use of transformers
        model = peft.get_peft_model(hf, config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    lm = load(model)
    for by in ("head", "source", "memory"):
        assert attribution(lm, tokens[:1], 11, by=by).error < 1e-4
    adapted = lm.weights.W_out[0].clone()
    # Both read matrices while the model runs, and measure those of adapters by calling the adapter.
    scores = head_scores(lm, n_sequences=4, length=8)
    found = examples_of_prefixes(lm, list(tokens))
    merged = load(model.merge_and_unload())
    torch.testing.assert_close(adapted, merged.weights.W_out[0], **F32)
    expected_scores = head_scores(merged, n_sequences=4, length=8)
    for kind in KINDS:
        torch.testing.assert_close(scores[kind], expected_scores[kind], rtol=1e-3, atol=1e-4)
    expected = examples_of_prefixes(merged, list(tokens))
    torch.testing.assert_close(found.update, expected.update, rtol=1e-3, atol=1e-4)
    assert torch.equal(found.dominant, expected.dominant)


def test_a_model_with_dynamic_quantization_below_its_head_is_read_without_its_matrices(tokens: torch.Tensor) -> None:
    hf = build("llama-biases")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that its quantization moves to torchao
        linears = {name for name, part in hf.named_modules() if isinstance(part, nn.Linear) and name != "lm_head"}
        chosen = {name: torch.ao.quantization.default_dynamic_qconfig for name in linears}
        quantized = torch.ao.quantization.quantize_dynamic(hf, chosen, dtype=torch.qint8)
    lm = load(quantized)
    assert lm.memory_layers == tuple(range(lm.n_layers))
    trace = lm.trace(tokens[:1])
    with torch.no_grad():
        expected = quantized(tokens[:1]).logits[0]
    assert all(torch.equal(trace.logits(n).cpu(), row) for n, row in enumerate(expected))
    assert len(trace.readings().tokens) == lm.n_layers
    assert trace.attribution(11).error < 1e-4
    for refused in (
        lambda: trace.sub_updates(0),
        lambda: trace.attribution(11, by="memory"),
        lambda: lm.weights.W_out[0],
    ):
        with pytest.raises(Unsupported, match=r"mlp\.\w+ is not linear in its input"):
            refused()


def test_an_adapter_on_fused_experts_is_named_and_merged_ones_are_read() -> None:
    hf = tiny_model("qwen3_moe")
    config = peft.LoraConfig(
        r=2,
        target_modules=[],
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        init_lora_weights=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT warns of the empty list of modules
        model = peft.get_peft_model(hf, config).eval()
    ids = torch.tensor([[1, 2, 3, 4]])
    adapted = load(model)
    assert attribution(adapted, ids, 11).error < 1e-4
    with pytest.raises(Unsupported, match=r"an adapter of PEFT changes the experts' weights.*merge_and_unload"):
        attribution(adapted, ids, 11, by="memory")
    merged = load(model.merge_and_unload())
    assert attribution(merged, ids, 11, by="memory").error < 1e-4

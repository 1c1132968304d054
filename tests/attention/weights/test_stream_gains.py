"""Where blocks rescale the stream, folded circuits have the factors between two parts; the truth is the model's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.decoder_classes import tiny_model
from unembed.attention import Circuits
from unembed.attention.paths.geometry import virtual_weights
from unembed.attention.weights.folded_weights import default_basis
from unembed.attention.weights.stream_gains import read_at_end
from unembed.errors import Unsupported
from unembed.language_model import load

D = 16


def _doge(block: Any) -> tuple[Tensor, Tensor, Tensor]:
    return block.input_residual, block.post_attention_residual, torch.ones(64).double()


def _gemma_4(block: Any) -> tuple[Tensor, Tensor, Tensor]:
    one = torch.ones(64).double()
    return one, one, one * block.layer_scalar


def _minimax(block: Any) -> tuple[Tensor, Tensor, Tensor]:
    return block.input_layernorm.weight, block.post_attention_layernorm.weight, torch.ones(64).double()


Factors = Callable[[Any], tuple[Tensor, Tensor, Tensor]]
MODELS: dict[str, tuple[Factors, int, int]] = {
    "doge": (_doge, 0, 3),
    "gemma4_text": (_gemma_4, 0, 1),
    "minimax": (_minimax, 0, 2),
}
"""How each block's factors are read, and two layers with attention."""


def _slice(weight: Tensor, head: int) -> Tensor:
    return weight[D * head : D * (head + 1)].T  # (d_model, d_head)


def _opened(model_type: str) -> tuple[Circuits, Any]:
    model = tiny_model(model_type).double()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # grouped products refuse float64
    lm = load(model)
    return Circuits(lm), lm.hf.model


@torch.no_grad()
@pytest.mark.parametrize("model_type", list(MODELS))
def test_the_factors_between_two_parts_are_in_every_product_of_the_two(model_type: str) -> None:
    circuits, base = _opened(model_type)
    factors, first, last = MODELS[model_type]
    blocks, lm = list(base.layers), circuits.lm
    writer, reader = blocks[first].self_attn, blocks[last].self_attn
    entry, middle, leaving = zip(*(factors(block) for block in blocks), strict=True)
    inner = [entry[n] * middle[n] * leaving[n] for n in range(len(blocks))]
    between = middle[first] * leaving[first] * torch.stack([torch.ones(64).double(), *inner[first + 1 : last]]).prod(0)
    W_O = writer.o_proj.weight[:, D : 2 * D].T  # of head 1: (d_head, d_model)
    if model_type == "gemma4_text":  # the branch's norm, its division left out
        W_O = W_O * blocks[first].post_attention_layernorm.weight
    W_V = _slice(reader.v_proj.weight, 1)  # of head 2: two heads share their values
    expected = W_O @ (between[:, None] * (blocks[last].input_layernorm.weight[:, None] * W_V))
    found = circuits.virtual_weight(f"L{first}H1", f"L{last}H2", "folded")
    torch.testing.assert_close(found["V"], expected, rtol=1e-7, atol=1e-10)

    before = torch.stack([torch.ones(64).double(), *inner[:last]]).prod(0)
    after = middle[last] * leaving[last] * torch.stack([torch.ones(64).double(), *inner[last + 1 :]]).prod(0)
    W_E = lm.hf.get_input_embeddings().weight
    W_E = W_E * base.embed_tokens.embed_scale if model_type == "gemma4_text" else W_E
    W_U = lm.hf.get_output_embeddings().weight.T
    wrote = reader.o_proj.weight[:, 2 * D : 3 * D].T
    if model_type == "gemma4_text":
        wrote = wrote * blocks[last].post_attention_layernorm.weight
    read = before[:, None] * (blocks[last].input_layernorm.weight[:, None] * W_V)
    whole = W_E @ read @ (wrote * after) @ (base.norm.weight[:, None] * W_U)
    torch.testing.assert_close(circuits.ov_full(last, 2, "folded", centre=False).dense(), whole, rtol=1e-7, atol=1e-10)
    whole = whole - whole.mean(dim=1, keepdim=True)
    values = torch.linalg.eigvals(whole)
    score = values.real.sum() / values.abs().sum()
    torch.testing.assert_close(circuits.copying_scores("folded")[last, 2], score, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_memories_and_heads_are_joined_by_the_factors_between_them() -> None:
    circuits, base = _opened("doge")
    blocks = list(base.layers)
    value = blocks[1].mlp.down_proj.weight[:, 7]
    carried = value * blocks[2].input_residual  # read by the FFN of layer 2 before its own second factor
    key = blocks[2].post_attention_layernorm.weight * blocks[2].mlp.gate_proj.weight[5]
    found = circuits.virtual_weight("L1M7", "L2M5", "folded")["key"]
    torch.testing.assert_close(found, (carried @ key)[None, None], rtol=1e-9, atol=1e-12)
    raw = circuits.virtual_weight("L1M7", "L2M5", "raw")["key"]
    torch.testing.assert_close(raw, (value @ blocks[2].mlp.gate_proj.weight[5])[None, None], rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_composition_is_that_of_the_same_model_whose_stream_is_only_added_to() -> None:
    circuits, base = _opened("doge")
    ones, blocks = torch.ones(64).double(), list(base.layers)
    later = [
        torch.stack([ones, *(b.input_residual * b.post_attention_residual for b in blocks[n:])]).prod(0) for n in (1, 3)
    ]
    W_O = blocks[0].self_attn.o_proj.weight[:, :D].T * blocks[0].post_attention_residual * later[0]
    W_V = blocks[0].input_layernorm.weight[:, None] * _slice(blocks[0].self_attn.v_proj.weight, 0)
    every = blocks[0].input_residual * blocks[0].post_attention_residual * later[0]
    written = (W_V / every[:, None]) @ W_O
    W_V = blocks[3].input_layernorm.weight[:, None] * _slice(blocks[3].self_attn.v_proj.weight, 1)
    read = (W_V / later[1][:, None]) @ (
        blocks[3].self_attn.o_proj.weight[:, 2 * D : 3 * D].T * blocks[3].post_attention_residual
    )
    expected = (written @ read).norm() / written.norm() / read.norm()
    torch.testing.assert_close(circuits.composition("v", basis="folded")[0, 0, 3, 2], expected, rtol=1e-6, atol=1e-9)


def test_several_streams_have_no_folded_circuits_and_the_weights_alone_are_the_default() -> None:
    lm = load(tiny_model("gemma3n_text"))
    circuits = Circuits(lm)
    assert default_basis(lm) == "raw"
    for ask in (circuits.copying, circuits.compositions, lambda basis: virtual_weights(lm, basis)):
        with pytest.raises(Unsupported, match=r"(4|several) streams"):
            ask("folded")
    assert circuits.copying("raw").score[:3].isfinite().all()
    assert any("4 streams" in note for note in circuits.ov(0, 0).notes)


def test_a_part_of_the_stream_that_a_later_block_removes_is_not_folded() -> None:
    model = tiny_model("doge").double()
    with torch.no_grad():
        model.model.layers[2].input_residual[3] = 0.0
    lm = load(model)
    with pytest.raises(Unsupported, match="a later block removes a part of the stream"):
        read_at_end(lm, torch.ones(64, 1).double(), 1, "attention")
    assert read_at_end(lm, torch.ones(64, 1).double(), 3, "attention").isfinite().all()

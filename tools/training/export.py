"""Export of a trained network to the folder that ships: config, half-precision weights."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from tools.training.networks import Attention, AttentionOnly, Block, Wren
from unembed.models.architectures.attention_only import AttentionOnlyConfig, AttentionOnlyForCausalLM

ModelT = TypeVar("ModelT", bound=PreTrainedModel)


def as_transformers(network: Wren | AttentionOnly) -> PreTrainedModel:
    """A transformers model in float32 with the same weights and the same logits."""
    return _gpt2(network) if isinstance(network, Wren) else _attention_only(network)


def save(network: Wren | AttentionOnly, folder: Path, *, n_positions: int | None = None) -> None:
    """Write `config.json` and `model.safetensors` in float16, for `AutoModelForCausalLM.from_pretrained(folder)`.

    With `n_positions`, later positions are left out.
    """
    as_transformers(_cut(network, n_positions) if n_positions else network).half().save_pretrained(folder)


def _cut(network: Wren | AttentionOnly, n_positions: int) -> Wren | AttentionOnly:
    shorter = copy.deepcopy(network)
    shorter.shape = dataclasses.replace(network.shape, context=n_positions)
    shorter.wpe = torch.nn.Embedding.from_pretrained(network.wpe.weight.detach()[:n_positions])
    return shorter


def _gpt2(network: Wren) -> GPT2LMHeadModel:
    shape = network.shape
    config = GPT2Config(
        vocab_size=shape.d_vocab,
        n_positions=shape.context,
        n_embd=shape.d_model,
        n_layer=shape.n_layers,
        n_head=shape.n_heads,
        n_inner=shape.d_mlp,
        activation_function="relu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    state: dict[str, Tensor] = {
        "transformer.wte.weight": network.wte.weight,
        "transformer.wpe.weight": network.wpe.weight,
        "transformer.ln_f.weight": network.ln_f.weight,
        "transformer.ln_f.bias": network.ln_f.bias,
        "lm_head.weight": network.wte.weight,
    }
    for index, block in enumerate(b for b in network.blocks if isinstance(b, Block)):
        at = f"transformer.h.{index}."
        attention = block.attention
        parts = (attention.q, attention.k, attention.v)
        # GPT-2 stores its matrices (d_in, d_out), transposes of a Linear, with queries, keys and values side by side.
        state |= {
            at + "attn.c_attn.weight": torch.cat([part.weight for part in parts]).T,
            at + "attn.c_attn.bias": torch.cat([part.bias for part in parts]),
            at + "attn.c_proj.weight": attention.o.weight.T,
            at + "attn.c_proj.bias": attention.o.bias,
            at + "mlp.c_fc.weight": block.w_in.weight.T,
            at + "mlp.c_fc.bias": block.w_in.bias,
            at + "mlp.c_proj.weight": block.w_out.weight.T,
            at + "mlp.c_proj.bias": block.w_out.bias,
        }
        for norm in ("ln_1", "ln_2"):
            state |= {f"{at}{norm}.{key}": value for key, value in getattr(block, norm).named_parameters()}
    return _filled(GPT2LMHeadModel(config), state)


def _attention_only(network: AttentionOnly) -> AttentionOnlyForCausalLM:
    shape = network.shape
    config = AttentionOnlyConfig(
        vocab_size=shape.d_vocab,
        hidden_size=shape.d_model,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        head_dim=shape.d_head,
        max_position_embeddings=shape.context,
    )
    state: dict[str, Tensor] = {
        "model.embed_tokens.weight": network.wte.weight,
        "model.embed_positions.weight": network.wpe.weight,
        "lm_head.weight": network.lm_head.weight,
    }
    for index, layer in enumerate(a for a in network.layers if isinstance(a, Attention)):
        state |= {f"model.layers.{index}.self_attn.{part}_proj.weight": getattr(layer, part).weight for part in "qkvo"}
    return _filled(AttentionOnlyForCausalLM(config), state)


def _filled(model: ModelT, state: dict[str, Tensor]) -> ModelT:
    model.load_state_dict({name: tensor.detach().float().clone() for name, tensor in state.items()}, strict=True)
    return model.eval()

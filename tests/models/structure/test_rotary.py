"""Rotations of queries and keys are exact at every distance, whatever the precision of the weights."""

import sys

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import unembed
from tests.conftest import tiny
from tests.families import build
from unembed.models.structure.rotary import Rotary

KINDS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512},
    "longrope": {
        "rope_type": "longrope", "factor": 8.0, "original_max_position_embeddings": 512,
        "short_factor": [1.0 + i / 10 for i in range(6)], "long_factor": [2.0 + i for i in range(6)],
    },
    "proportional": {"rope_type": "proportional", "factor": 2.0, "partial_rotary_factor": 0.67},
}  # fmt: skip
OFFSETS = 2048
HALF = [torch.bfloat16, torch.float16]


def llama(kind: str, dtype: torch.dtype) -> LlamaForCausalLM:
    """A model of half-precision weights whose inverse frequencies are float32, as `from_pretrained` leaves them."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, max_position_embeddings=4096,
        rope_parameters={"rope_theta": 10000.0, **KINDS[kind]},
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
        parameter.data = parameter.data.to(dtype)
    return model


def rotated_by_the_model(model: PreTrainedModel, W: Tensor, offsets: Tensor) -> Float[Tensor, "offset d_model d_head"]:
    """A matrix of queries at every offset by the model's own functions, in float64."""
    modeling = sys.modules[type(model).__module__]
    rows = (
        W.double().expand(len(offsets), 1, *W.shape).transpose(1, 2)
    )  # offset d_model 1 d_head: one head for each row
    if model.config.model_type == "gptj":
        dim = model.config.rotary_dim
        sin, cos = modeling.create_sinusoidal_positions(OFFSETS, dim).double()[offsets, None].chunk(2, dim=-1)
        turned = modeling.apply_rotary_pos_emb(rows[..., :dim].transpose(1, 2), sin, cos).transpose(1, 2)
        return torch.cat([turned, rows[..., dim:]], dim=-1)[:, :, 0]
    site, x = model.base_model, torch.empty(1, dtype=torch.float64)
    kinds = getattr(model.config, "layer_types", None)
    kind = [kinds[1]] if model.config.model_type == "gemma3_text" and kinds else []
    cos, sin = site.rotary_emb(x, offsets[None], *kind)  # 1 offset width
    assert cos.dtype == torch.float64
    cos, sin = cos.transpose(0, 1), sin.transpose(0, 1)
    dim = cos.shape[-1]
    turned, _ = modeling.apply_rotary_pos_emb(rows[..., :dim], rows[..., :dim], cos, sin)
    return torch.cat([turned, rows[..., dim:]], dim=-1)[:, :, 0]


def check_every_offset(model: PreTrainedModel) -> None:
    """Rotated queries at all offsets and circuits at some, within 1 % of the model's own rotation in float64."""
    lm, head = unembed.load(model), 3
    circuits, site = unembed.circuits(lm), lm.structure.blocks[1].attention
    assert site.scores.rotary is not None and site.scores.rotary.certain
    W_Q, W_K = lm.weights.W_Q[1][head], lm.weights.W_K[1][head // site.queries_per_kv]
    offsets, zero = torch.arange(OFFSETS), torch.zeros(1, dtype=torch.long)
    keys = rotated_by_the_model(model, W_K, zero)[0].T  # not the keys themselves: YaRN and LongRoPE have a factor
    expected = rotated_by_the_model(model, W_Q, offsets) @ keys
    found = site.scores.rotary.rotate(W_Q.expand(OFFSETS, *W_Q.shape).transpose(0, 1), offsets).transpose(0, 1)
    found = (found @ site.scores.rotary.rotate(W_K, zero).T).double()
    sizes = expected.flatten(1).norm(dim=1)
    assert float(((found - expected).flatten(1).norm(dim=1) / sizes).max()) < 1e-2
    assert (found[1:] != found[:-1]).flatten(1).any(dim=1).all(), "neighbouring offsets differ"
    for offset in (0, 1, 100, 256, 257, 1000, 2047):
        alone = rotated_by_the_model(model, W_Q, offsets[[offset]])[0] @ keys
        circuit = circuits.qk(1, head, offset).dense().double()
        assert float((circuit - alone).norm() / alone.norm()) < 1e-2, offset


def test_every_kind_of_rotation_in_transformers_is_tested() -> None:
    assert {*ROPE_INIT_FUNCTIONS} <= {*KINDS}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind == "default" or kind in ROPE_INIT_FUNCTIONS])
def test_circuits_by_offset_equal_the_model_s_own_rotation_in_float64(kind: str, dtype: torch.dtype) -> None:
    model = llama(kind, dtype)
    rotary = unembed.load(model).structure.blocks[1].attention.scores.rotary
    assert rotary is not None
    torch.testing.assert_close(rotary.frequencies, model.model.rotary_emb.inv_freq.double(), rtol=0, atol=0)
    check_every_offset(model)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", ["gptj", "gpt_neox", "phi", "cohere", "glm4", "gemma3"])
def test_pairs_of_channels_side_by_side_and_half_a_head_are_rotated_as_the_model_does(
    name: str, dtype: torch.dtype
) -> None:
    model = build(name)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    check_every_offset(model)


@pytest.mark.parametrize("dtype", HALF)
def test_frequencies_are_those_that_a_model_uses_where_its_own_are_rounded(dtype: torch.dtype) -> None:
    """`model.to(bfloat16)` rounds the buffers as well, and the model then rotates by the rounded frequencies."""
    model = build("llama").to(dtype)
    rotary = unembed.load(model).structure.blocks[0].attention.scores.rotary
    assert rotary is not None
    torch.testing.assert_close(rotary.frequencies, model.model.rotary_emb.inv_freq.double(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["default", "yarn", "longrope"])
@pytest.mark.parametrize("dtype", HALF)
def test_scores_of_a_long_prompt_in_half_precision_are_proved_on_the_model_s_pattern(
    kind: str, dtype: torch.dtype
) -> None:
    lm = unembed.load(llama(kind, dtype))
    tokens = torch.randint(3, 97, (1, 600), generator=torch.Generator().manual_seed(0))
    terms = unembed.circuits(lm).score_terms(tokens, 1, 2)
    assert terms.error < 0.05


def test_positions_never_pass_through_the_dtype_of_what_is_rotated() -> None:
    rotary = Rotary(torch.tensor([1.0, 0.03], dtype=torch.float64), False, 1, 1.0)
    x = torch.ones(2, 4, dtype=torch.bfloat16)
    found = rotary.rotate(x, torch.tensor([256, 257]))
    assert found.dtype == torch.float32
    angles = torch.tensor([256, 257], dtype=torch.float64)[:, None] * rotary.frequencies
    expected = torch.cat([angles.cos() - angles.sin(), angles.cos() + angles.sin()], dim=1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


def weakened(name: str, dtype: torch.dtype, layers: tuple[int, ...]) -> PreTrainedModel:
    """A family's model with layers whose queries are so small that their attention is all but uniform."""
    model = build(name, dtype)
    lm = unembed.load(model)
    with torch.no_grad():
        for layer in layers:
            lm.weights.W_Q[layer].mul_(1e-3)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("name", ["llama", "gptj", "cohere", "glm4", "gpt_neox"])
def test_a_layer_of_weak_attention_is_rotated_as_the_other_layers_are(name: str, dtype: torch.dtype) -> None:
    expected = unembed.load(build(name, dtype)).structure.blocks[1].attention.scores.rotary
    found = unembed.load(weakened(name, dtype, (0,))).structure.blocks[0].attention.scores.rotary
    assert expected is not None and found is not None
    assert (found.interleaved, found.sign) == (expected.interleaved, expected.sign)
    torch.testing.assert_close(found.frequencies, expected.frequencies)


def test_a_model_of_weak_attention_alone_is_not_taken_for_one_without_rotation() -> None:
    structure = unembed.load(weakened("llama", torch.bfloat16, (0, 1))).structure
    assert structure.positions == "rotary"
    assert all(block.attention.scores.rotary is not None for block in structure.blocks)


def test_layers_that_do_not_rotate_have_no_rotation() -> None:
    blocks = tiny("smollm3").structure.blocks
    flags = [block.attention.module.use_rope for block in blocks]
    assert [block.attention.scores.rotary is not None for block in blocks] == [bool(flag) for flag in flags]

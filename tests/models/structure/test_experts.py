"""Memories that belong to experts: coefficients, values and keys against each expert computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import unembed
from tests.models.decoder_classes import tiny_model
from unembed.errors import OutOfRange
from unembed.logit_attribution import attribution
from unembed.stream.run import run

F32: dict[str, Any] = dict(rtol=2e-5, atol=2e-6)
TYPES = ("qwen3_moe", "qwen2_moe", "deepseek_v3", "gpt_oss", "llama4_text", "nemotron_h", "granitemoe", "laguna")
TYPES += ("dbrx", "jetmoe")
SWITCHED = ("qwen3_moe", "qwen2_moe", "gpt_oss", "llama4_text", "afmoe", "dbrx", "jetmoe", "axk1")
IMPLEMENTATIONS = ("grouped_mm", "batched_mm", "eager")


def _tokens(batch: int = 2, pos: int = 9) -> Tensor:
    return torch.randint(3, 97, (batch, pos), generator=torch.Generator().manual_seed(1))


def _layer_with_experts(lm: Any) -> int:
    return next(n for n, b in enumerate(lm.structure.blocks) if b.feed_forward and b.feed_forward.experts)


def _of_dtype(model_type: str, dtype: torch.dtype) -> Any:
    """The tiny model, with experts one by one in float64, which grouped products refuse."""
    hf = tiny_model(model_type).to(dtype)
    if dtype == torch.float64 and hf._can_set_experts_implementation():
        hf.set_experts_implementation("eager")
    return hf


def _routed_by_hand(mlp: Any, x: Tensor) -> Tensor:
    """Coefficients of Qwen's and Mixtral's routed experts, expert by expert, in float64: (pos, expert, index)."""
    experts = mlp.experts
    _, weights, chosen = mlp.gate(x)
    x, m = x.double(), torch.zeros(len(x), experts.num_experts, experts.down_proj.shape[2], dtype=torch.float64)
    for position in range(len(x)):
        for slot in range(chosen.shape[1]):
            e = int(chosen[position, slot])
            gate, up = (experts.gate_up_proj[e].double() @ x[position]).chunk(2)
            m[position, e] = weights[position, slot].double() * torch.nn.functional.silu(gate) * up
    return m


@pytest.mark.parametrize("model_type", ["qwen3_moe", "qwen2_moe", "mixtral"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_coefficients_are_gate_weight_times_activation(model_type: str, implementation: str) -> None:
    hf = tiny_model(model_type)
    hf.set_experts_implementation(implementation)
    lm = unembed.load(hf)
    seen = run(lm, _tokens(), ["coefficients", "gate_weights", "mlp_in", "mlp_out"])
    for layer in range(lm.n_layers):
        experts, mlp = lm.feed_forward(layer).experts, hf.model.layers[layer].mlp
        assert experts is not None
        x = seen.at("mlp_in", layer).flatten(0, 1)
        with torch.no_grad():
            expected = _routed_by_hand(mlp, x)
        m = seen.at("coefficients", layer).flatten(0, 1)
        assert m.shape[1] == experts.n_memories == lm.weights.n_memories[layer]
        torch.testing.assert_close(m[:, : experts.n_routed].double(), expected.flatten(1), **F32)
        chosen = expected.abs().sum(2) > 0
        assert int(chosen.sum(1).min()) == int(chosen.sum(1).max()) == hf.config.num_experts_per_tok
        torch.testing.assert_close(seen.at("gate_weights", layer).flatten(0, 1) > 0, chosen)
        if model_type == "qwen2_moe":
            shared = mlp.shared_expert
            act = torch.nn.functional.silu(shared.gate_proj(x)) * shared.up_proj(x)
            act = torch.sigmoid(mlp.shared_expert_gate(x)) * act
            torch.testing.assert_close(m[:, experts.n_routed :], act.detach(), **F32)
    assert hf.config._experts_implementation == implementation


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_coefficients_times_values_are_what_the_experts_write(model_type: str, dtype: torch.dtype) -> None:
    lm = unembed.load(_of_dtype(model_type, dtype))
    layer = _layer_with_experts(lm)
    site = lm.feed_forward(layer)
    assert site.branch_norm is None
    seen = run(lm, _tokens(), ["coefficients", "mlp_out"])
    bias = lm.weights.b_out[layer]
    written = seen.at("coefficients", layer) @ lm.weights.W_out[layer] + (0 if bias is None else bias)
    written = written * site.multiplier
    error = (written - seen.at("mlp_out", layer)).float().norm() / seen.at("mlp_out", layer).float().norm()
    assert float(error) < {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]


@pytest.mark.parametrize("model_type", TYPES)
def test_rows_of_values_are_those_of_the_whole_matrix(model_type: str) -> None:
    lm = unembed.load(tiny_model(model_type))
    layer = _layer_with_experts(lm)
    whole = lm.weights.W_out[layer]
    rows = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
    assert torch.equal(lm.weights.values(layer, rows), whole[rows])
    assert torch.equal(lm.weights.values(layer, slice(3, 11)), whole[3:11])


@pytest.mark.parametrize(
    "model_type",
    ["qwen3_moe", "qwen2_moe", "deepseek_v3", "gpt_oss", "nemotron_h", "llama4_text", "dbrx", "jetmoe"],
)
def test_keys_and_gates_give_the_activations_of_the_chosen_experts(model_type: str) -> None:
    hf = tiny_model(model_type)
    lm = unembed.load(hf)
    layer = _layer_with_experts(lm)
    site = lm.feed_forward(layer)
    experts = site.experts
    assert experts is not None
    seen = run(lm, _tokens(), ["coefficients", "gate_weights", "mlp_in"])
    x, m = seen.at("mlp_in", layer).flatten(0, 1).double(), seen.at("coefficients", layer).flatten(0, 1).double()
    weights = seen.at("gate_weights", layer).flatten(0, 1).double()

    def products(which: str) -> Tensor:
        found = (lm.weights.W_gate if which == "gate" else lm.weights.W_in)[layer]
        assert found is not None
        matrix = found.double()
        bias = (lm.weights.b_gate if which == "gate" else lm.weights.b_in)[layer]
        return x @ matrix if bias is None else x @ matrix + bias.double()

    chosen = (weights != 0).repeat_interleave(experts.width, dim=1)
    factor = weights.repeat_interleave(experts.width, dim=1)
    up = products("up")[:, : experts.n_routed]
    if model_type == "nemotron_h":
        expected = factor * up.relu().square()
    elif model_type == "gpt_oss":
        gate, limit = products("gate").clamp(max=hf.config.swiglu_limit), hf.config.swiglu_limit
        expected = factor * (up.clamp(-limit, limit) + 1) * gate * torch.sigmoid(gate * hf.config.swiglu_alpha)
        bias_rows = torch.arange(experts.n_routed) % experts.width == experts.d_expert
        expected[:, bias_rows] = factor[:, bias_rows]
    elif model_type == "llama4_text":  # the gate weight multiplies what the expert reads
        by = torch.sigmoid(hf.model.layers[layer].feed_forward.router.weight.double() @ x.T).T
        by = by.repeat_interleave(experts.width, dim=1)
        expected = (up * by) * torch.nn.functional.silu(products("gate")[:, : experts.n_routed] * by)
    else:
        expected = factor * up * torch.nn.functional.silu(products("gate")[:, : experts.n_routed])
    torch.testing.assert_close(m[:, : experts.n_routed][chosen], expected[chosen].detach(), **F32)


@pytest.mark.parametrize("model_type", SWITCHED)
def test_switching_a_memory_off_equals_a_model_without_its_value(model_type: str) -> None:
    hf = tiny_model(model_type)
    lm = unembed.load(hf)
    layer, tokens = _layer_with_experts(lm), _tokens()
    experts = lm.feed_forward(layer).experts
    assert experts is not None
    m = run(lm, tokens, "coefficients").at("coefficients", layer).flatten(0, 1)
    index = int((m.abs().sum(0) * (torch.arange(m.shape[1]) % experts.width != experts.d_expert)).argmax())
    edited = run(lm, tokens, edits=[unembed.scale_coefficient(layer, index, 0.0)]).logits
    expert, within = experts.expert_of(index)
    with torch.no_grad():
        if expert is None:
            assert experts.shared is not None
            experts.shared.down_proj.get_parameter("weight")[:, within] = 0
        else:
            experts.storage.values()[expert, within] = 0
    torch.testing.assert_close(edited, run(lm, tokens).logits, rtol=1e-5, atol=1e-5)


def test_a_coefficient_can_be_set_at_a_position_that_was_not_routed_to_its_expert() -> None:
    lm = unembed.load(tiny_model("qwen3_moe"))
    tokens = _tokens(1)
    seen = run(lm, tokens, ["coefficients", "gate_weights", "mlp_out"])
    layer, position = 3, 5
    expert = int((seen.at("gate_weights", layer)[0, position] == 0).nonzero()[0])
    experts = lm.feed_forward(layer).experts
    assert experts is not None
    index = experts.number(expert, 4)
    edit = unembed.set_coefficient(layer, index, 2.5, [position])
    edited = run(lm, tokens, ["coefficients", "mlp_out"], edits=[edit])
    expected = seen.at("mlp_out", layer).clone()
    expected[0, position] += 2.5 * lm.weights.W_out[layer][index]
    torch.testing.assert_close(edited.at("mlp_out", layer), expected, **F32)
    assert float(edited.at("coefficients", layer)[0, position, index]) == 2.5


@pytest.mark.parametrize("model_type", ["qwen3_moe", "qwen2_moe"])
def test_edits_hold_with_a_cache_and_with_padding_on_either_side(model_type: str) -> None:
    lm = unembed.load(tiny_model(model_type))
    layer, tokens = 1, _tokens(1, 6)
    m = run(lm, tokens, "coefficients").at("coefficients", layer)[0]
    edits = [unembed.scale_coefficient(layer, int(m[-1].abs().argmax()), -3.0)]
    alone = run(lm, tokens, edits=edits).logits[0]
    for side in ("left", "right"):
        ids = torch.zeros(1, 9, dtype=torch.long)
        real = slice(3, 9) if side == "left" else slice(0, 6)
        ids[:, real] = tokens
        mask = torch.zeros_like(ids)
        mask[:, real] = 1
        padded = run(lm, ids, edits=edits, attention_mask=mask).logits[0, real]
        torch.testing.assert_close(padded, alone, rtol=1e-4, atol=1e-5)
    from unembed.stream.hooks import attach_hooks

    with torch.no_grad(), attach_hooks(lm, {}, edits):
        first = lm.hf(tokens[:, :4], use_cache=True)
        second = lm.hf(tokens[:, 4:], past_key_values=first.past_key_values, use_cache=True)
    torch.testing.assert_close(second.logits[0], alone[4:], rtol=1e-4, atol=1e-5)


def test_captures_leave_the_logits_bit_equal_and_nothing_stays_on_the_model() -> None:
    hf = tiny_model("qwen3_moe")
    tokens = _tokens()
    with torch.no_grad():
        plain = hf(tokens).logits
    lm = unembed.load(hf)
    assert torch.equal(run(lm, tokens, ["coefficients"]).logits, plain)
    experts = hf.model.layers[0].mlp.experts
    assert "_apply_gate" not in vars(experts) and not experts._forward_pre_hooks
    assert torch.equal(hf(tokens).logits, plain)


def test_memories_of_experts_are_numbered_through() -> None:
    lm = unembed.load(tiny_model("qwen2_moe"))
    experts = lm.feed_forward(0).experts
    assert experts is not None
    assert experts.expert_of(0) == (0, 0) and experts.expert_of(experts.width) == (1, 0)
    assert experts.expert_of(experts.n_routed + 7) == (None, 7) and experts.number(None, 7) == experts.n_routed + 7
    assert lm.memory(0, -1) == (0, experts.n_memories - 1)
    with pytest.raises(OutOfRange):
        lm.memory(0, experts.n_memories)


@pytest.mark.parametrize("model_type", ["deepseek_v4", "zaya"])
def test_routers_that_read_more_than_the_stream_have_memories(model_type: str) -> None:
    """DeepSeek-V4 routes by token ids and may name an expert twice, ZAYA by what an earlier router computed."""
    lm = unembed.load(tiny_model(model_type))
    layer = _layer_with_experts(lm)
    seen = run(lm, _tokens(), ["coefficients", "gate_weights"])
    returned: list[Tensor] = []
    ffn = lm.feed_forward(layer)
    handle = ffn.module.register_forward_hook(
        lambda _m, _a, out: returned.append(out if isinstance(out, Tensor) else out[0])
    )
    try:
        lm.run(_tokens())
    finally:
        handle.remove()
    found = seen.at("coefficients", layer).double() @ lm.weights.W_out[layer].double()
    torch.testing.assert_close(found, returned[0].double(), **F32)


def test_an_expert_that_a_table_names_twice_is_one_pair_with_both_weights() -> None:
    hf = tiny_model("deepseek_v4")
    lm = unembed.load(hf)
    layer = _layer_with_experts(lm)
    gate = lm.feed_forward(layer).module.get_submodule("gate")
    caught: list[tuple[Tensor, Tensor]] = []
    handle = gate.register_forward_hook(lambda _m, _a, out: caught.append((out[1], out[2])))
    try:
        seen = run(lm, _tokens(1), ["gate_weights"])
    finally:
        handle.remove()
    weights, chosen = (t.reshape(9, -1) for t in caught[-1])
    assert bool((chosen[:, 0] == chosen[:, 1]).any())
    by_hand = torch.zeros(9, seen.at("gate_weights", layer).shape[-1]).scatter_add_(1, chosen, weights.detach().float())
    torch.testing.assert_close(seen.at("gate_weights", layer)[0], by_hand, **F32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_experts_write_goes_through_the_norm_inside_their_ffn(dtype: torch.dtype) -> None:
    hf = _of_dtype("axk1", dtype)
    lm = unembed.load(hf)
    layer = lm.n_layers - 1
    given: list[Tensor] = []
    norm = hf.model.layers[layer].mlp.post_mlp_layernorm
    handle = norm.register_forward_pre_hook(lambda _m, args: given.append(args[0]))
    try:
        seen = run(lm, _tokens(), ["coefficients", "mlp_out"])
    finally:
        handle.remove()
    site = lm.feed_forward(layer)
    assert site.branch_norm is not None and site.branch_norm.module is norm
    found = seen.at("coefficients", layer) @ lm.weights.W_out[layer]
    error = (found - given[-1]).float().norm() / given[-1].float().norm()
    assert float(error) < {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    assert attribution(lm, _tokens(1), 11, by="memory").error < (1e-4 if dtype != torch.bfloat16 else 3e-2)

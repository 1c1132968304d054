"""Captures are the model's own tensors; hooks never stay; edits do what they say."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny
from tests.families import FAMILIES, PARALLEL, WITH_MEMORIES
from unembed.errors import InvalidInput, NotFinite, OutOfRange, PointMissing, SumNotProved, Unsupported
from unembed.language_model import LanguageModel
from unembed.logit_attribution import attribution
from unembed.names import POINTS
from unembed.stream.capture_points import has_point
from unembed.stream.hooks import attach_hooks
from unembed.stream.interventions import add_to_coefficient, scale_coefficient, scale_head, set_coefficient
from unembed.stream.run import run

CALLED = [n for n in FAMILIES if n != "falcon-rw"]


def _hooks(lm: LanguageModel) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in lm.hf.modules())


def test_captures_are_bit_equal_to_the_models_own(any_lm: LanguageModel, tokens: torch.Tensor) -> None:
    done = run(any_lm, tokens, ["resid_pre", "resid_post"])
    with torch.no_grad():
        own = any_lm.hf(tokens, use_cache=False, output_hidden_states=True)
    for layer in range(any_lm.n_layers):
        assert torch.equal(done["resid_pre"][layer], own.hidden_states[layer])
    assert torch.equal(done["resid_post"][:-1], done["resid_pre"][1:])
    assert torch.equal(done.logits, own.logits)


@pytest.mark.parametrize("name", CALLED)
def test_patterns_are_bit_equal_to_eager_ones(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    done = run(lm, tokens, ["pattern"])
    before = lm.hf.config._attn_implementation_internal
    lm.hf.config._attn_implementation_internal = "eager"  # the setter is ignored by Falcon
    try:
        with torch.no_grad():
            own = lm.hf(tokens, use_cache=False, output_attentions=True)
    finally:
        lm.hf.config._attn_implementation_internal = before
    for layer in range(lm.n_layers):
        assert torch.equal(done["pattern"][layer], own.attentions[layer])


@pytest.mark.parametrize("name", CALLED)
def test_one_row_of_the_patterns_is_that_row_of_whole_ones(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    before, whole = lm.hf.config._attn_implementation, run(lm, tokens, ["pattern", "z"])
    for row in (0, 4, tokens.shape[1] - 1):
        done = run(lm, tokens, ["pattern", "z"], row=row)
        torch.testing.assert_close(done["pattern"], whole["pattern"][..., [row], :], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(done["z"], whole["z"], rtol=1e-4, atol=1e-5)
    assert lm.hf.config._attn_implementation == before
    configs = [getattr(b.attention.module, "config", lm.hf.config) for b in lm.structure.blocks]
    assert all(config is lm.hf.config for config in configs)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "mixtral", "gptj"])
def test_one_position_of_a_point_is_that_of_the_whole_tensor(name: str, tokens: torch.Tensor) -> None:
    """At every point, stored by the pass and cut out of a run; heads come before positions in scores and patterns."""
    lm = tiny(name)
    for point in POINTS:
        if not any(has_point(lm, point, layer) for layer in range(lm.n_layers)) or point == "position_embedding":
            continue
        whole = run(lm, tokens, [point])
        axis = 2 if point in ("scores", "pattern") else 1
        for row in (0, 5):
            stored = run(lm, tokens, [point], row=row, row_of=[point])
            for layer in (n for n in range(lm.n_layers) if has_point(lm, point, n)):
                own = whole.at(point, layer).narrow(axis, row, 1)
                torch.testing.assert_close(stored.at(point, layer), own, rtol=1e-5, atol=1e-6)
                assert torch.equal(whole.at_position(row).at(point, layer), own)
        assert torch.equal(whole.at_position(5).logits, whole.logits[:, [5]])


def test_a_row_is_a_position_and_its_points_are_captured(tokens: torch.Tensor) -> None:
    lm = tiny("llama")
    assert run(lm, tokens, "coefficients", row=2, row_of="coefficients")["coefficients"].shape[2] == 1
    for row in (-1, tokens.shape[1]):
        with pytest.raises(OutOfRange, match="the prompt has the positions 0 to 8"):
            run(lm, tokens, "z", row=row)
    with pytest.raises(InvalidInput, match="this point is not captured"):
        run(lm, tokens, "z", row=0, row_of=("coeficients",))


def test_capturing_one_pattern_leaves_other_layers_on_the_fast_path(tokens: torch.Tensor) -> None:
    lm = tiny("llama")
    seen: list[object] = []
    handles = [
        b.attention.module.register_forward_hook(lambda _m, _a, out: seen.append(out[1])) for b in lm.structure.blocks
    ]
    done = run(lm, tokens, ["pattern"], layers=[1])
    for handle in handles:
        handle.remove()
    assert done["pattern"].shape[0] == 1 and seen[0] is None and isinstance(seen[1], torch.Tensor)
    assert lm.hf.config._attn_implementation == "sdpa"
    assert all(b.attention.module.config is lm.hf.config for b in lm.structure.blocks)


def test_falcon_with_alibi_refuses_patterns(tokens: torch.Tensor) -> None:
    with pytest.raises(Exception, match="adds ALiBi twice"):
        run(tiny("falcon-rw"), tokens, ["pattern"])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_row_has_the_numbers_it_has_alone(name: str, side: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    short = tokens[0, :5]
    padding = torch.full((4,), 1)
    row = torch.cat([padding, short] if side == "left" else [short, padding])
    real = slice(4, 9) if side == "left" else slice(0, 5)
    mask = torch.zeros(2, 9, dtype=torch.long)
    mask[0, real], mask[1] = 1, 1
    points = ["resid_post", "z"] + (["coefficients"] if lm.d_mlp else [])
    together = run(lm, torch.stack([row, tokens[1]]), points, attention_mask=mask)
    alone = run(lm, short[None], points)
    for point in points:
        torch.testing.assert_close(together[point][:, 0, real], alone[point][:, 0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together.logits[0, real], alone.logits[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(together.logits[1], run(lm, tokens[1:]).logits[0], rtol=1e-4, atol=1e-4)


def test_without_logits_the_pass_stops_early(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    ran: list[int] = []
    handles = [
        b.module.register_forward_hook(lambda _m, _a, _o, i=i: ran.append(i)) for i, b in enumerate(lm.structure.blocks)
    ]
    done = run(lm, tokens, ["coefficients"], logits=False, layers=[0])
    for handle in handles:
        handle.remove()
    assert ran == [] and done["coefficients"].shape == (1, 2, 9, lm.d_mlp)
    full = run(lm, tokens, ["coefficients"])
    assert torch.equal(full["coefficients"][0], done["coefficients"][0])
    with pytest.raises(PointMissing, match="logits=False"):
        _ = done.logits


def test_no_hook_stays_after_a_callback_fails(any_lm: LanguageModel, tokens: torch.Tensor) -> None:
    before, logits = _hooks(any_lm), run(any_lm, tokens).logits

    def fail(_t: torch.Tensor) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), attach_hooks(any_lm, {("resid_post", 0): fail}, [scale_head(0, 0, 0.0)]):
        any_lm.hf(tokens)
    assert _hooks(any_lm) == before
    assert torch.equal(run(any_lm, tokens).logits, logits)


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_setting_a_coefficient_moves_the_stream_by_its_value(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    edit = set_coefficient(0, 7, to=3.0, positions=[2])
    plain, changed = (run(lm, tokens, ["coefficients", "mlp_out"], e) for e in ([], [edit]))
    assert torch.all(changed["coefficients"][0, :, 2, 7] == 3.0)
    same = torch.ones(9, dtype=torch.bool)
    same[2] = False
    assert torch.equal(changed["coefficients"][0][:, same], plain["coefficients"][0][:, same])
    site = lm.feed_forward(0)
    if site.branch_norm is None:
        by = (3.0 - plain["coefficients"][0, :, 2, 7])[:, None] * lm.weights.W_out[0][7] * site.multiplier
        torch.testing.assert_close(changed["mlp_out"][0, :, 2] - plain["mlp_out"][0, :, 2], by, rtol=1e-3, atol=1e-4)
    assert not torch.equal(changed.logits[:, 2:], plain.logits[:, 2:])
    torch.testing.assert_close(changed.logits[:, :2], plain.logits[:, :2], rtol=1e-4, atol=1e-5)


def test_scaling_and_adding(tokens: torch.Tensor) -> None:
    lm = tiny("llama")
    plain = run(lm, tokens, ["coefficients"])
    both = run(lm, tokens, ["coefficients"], [scale_coefficient(0, 3, 2.0), add_to_coefficient(0, 3, 1.0)])
    torch.testing.assert_close(both["coefficients"][0, ..., 3], plain["coefficients"][0, ..., 3] * 2 + 1)
    last = run(lm, tokens, ["coefficients"], [scale_coefficient(0, 3, 0.0, positions="last")])
    assert torch.all(last["coefficients"][0, :, -1, 3] == 0)
    assert torch.equal(last["coefficients"][0, :, :-1], plain["coefficients"][0, :, :-1])


def test_last_means_the_last_real_token_of_each_row(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, 6:] = 0
    done = run(lm, tokens, ["coefficients"], [set_coefficient(1, 0, 9.0, "last")], attention_mask=mask)
    hit = done["coefficients"][1, ..., 0] == 9.0
    assert hit.nonzero().tolist() == [[0, 5], [1, 8]]


def test_chosen_positions_count_from_the_first_real_token(tokens: torch.Tensor) -> None:
    lm = tiny("llama")
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :4] = 0
    done = run(lm, tokens, ["coefficients"], [set_coefficient(1, 0, 9.0, [1, -1])], attention_mask=mask)
    hit = done["coefficients"][1, ..., 0] == 9.0
    assert hit.nonzero().tolist() == [[0, 5], [0, 8], [1, 1], [1, 8]]


def test_scaling_a_head_to_zero_removes_what_it_writes(any_lm: LanguageModel, tokens: torch.Tensor) -> None:
    done = run(any_lm, tokens, ["z"], [scale_head(1, 2, 0.0)])
    assert torch.all(done["z"][1, :, :, 2] == 0) and float(done["z"][1, :, :, 1].abs().sum()) > 0


@pytest.mark.parametrize("name", PARALLEL)
def test_parallel_blocks_have_no_resid_mid(name: str, tokens: torch.Tensor) -> None:
    with pytest.raises(PointMissing, match="Use resid_pre or resid_post"):
        run(tiny(name), tokens, ["resid_mid"])


def test_bad_input_is_refused_in_one_line(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    with pytest.raises(InvalidInput, match="not one of resid_pre"):
        run(lm, tokens, ["resid_past"])
    with pytest.raises(OutOfRange, match="ids of the vocabulary are 0 to 96"):
        run(lm, torch.tensor([[3, 97]]))
    with pytest.raises(InvalidInput, match="context of 64"):
        run(lm, torch.ones(1, 65, dtype=torch.long))
    with pytest.raises(InvalidInput, match="not empty"):
        run(lm, torch.ones(1, 0, dtype=torch.long))
    with pytest.raises(OutOfRange, match="gpt2 has 2, counted 0 to 1"):
        run(lm, tokens, ["z"], layers=[2])
    with pytest.raises(OutOfRange, match="memory in layer 1: 999"):
        run(lm, tokens, edits=[set_coefficient(1, 999, 3.0)])
    with pytest.raises(InvalidInput, match="not a finite number"):
        set_coefficient(0, 0, float("nan"))
    for make in (set_coefficient, scale_coefficient, add_to_coefficient, scale_head):
        with pytest.raises(InvalidInput, match=r"1e.39"):
            run(tiny("gpt2"), tokens, edits=[make(0, 0, -1e39)])
    with pytest.raises(NotFinite, match="under these edits"):
        run(tiny("gpt2"), tokens, edits=[set_coefficient(0, 0, 3e38), set_coefficient(0, 1, -3e38)])


REPLACEABLE = ("resid_pre", "attn_out", "q", "k", "v", "z", "gate", "up", "coefficients", "mlp_out", "resid_post")


def _pushed(lm: LanguageModel, tokens: torch.Tensor, point: str, layer: int, by: torch.Tensor) -> float:
    """A difference of logits when `by` is added to a point of one layer."""
    logits = run(lm, tokens, hooks={point: lambda t, at: t + by if at == layer else None}).logits
    return float(logits[0, -1, 5] - logits[0, -1, 6])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_hook_moves_the_prediction_as_the_gradient_predicts(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name, torch.float64)
    for point in REPLACEABLE:
        layers = [n for n in range(lm.n_layers) if has_point(lm, point, n)]
        if not layers:
            continue
        seen = run(lm, tokens[:1], point, grad=True)
        gradient = seen.gradient(point, of=seen.logits[0, -1, 5] - seen.logits[0, -1, 6])[-1]
        step = 2e-4 * torch.randn(gradient.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        moved = (
            _pushed(lm, tokens[:1], point, layers[-1], step) - _pushed(lm, tokens[:1], point, layers[-1], -step)
        ) / 2
        assert moved != 0.0, point
        # Norms compute in float32 whatever the model's dtype: differences this small are known to 1e-6.
        assert moved == pytest.approx(float((gradient * step).sum()), rel=1e-2, abs=1e-6), point


def _same(t: torch.Tensor, _layer: int) -> torch.Tensor:
    return t.clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_bigcode", "falcon-40b", "qwen2_moe"])
def test_a_hook_that_returns_nothing_or_the_same_changes_nothing(
    name: str, dtype: torch.dtype, tokens: torch.Tensor
) -> None:
    lm = tiny(name, dtype)
    plain = run(lm, tokens)
    called: list[int] = []
    seen = run(lm, tokens, hooks={"mlp_in": lambda _t, layer: called.append(layer)})
    assert torch.equal(seen.logits, plain.logits) and called == list(range(lm.n_layers))
    for point in REPLACEABLE:
        if has_point(lm, point, 0):
            assert torch.equal(run(lm, tokens, hooks={point: _same}).logits, plain.logits), point


def test_gradients_with_respect_to_patterns_are_the_models_own(tokens: torch.Tensor) -> None:
    lm = tiny("llama", torch.float64)
    seen = run(lm, tokens[:1], ["pattern", "z"], grad=True)
    value = seen.logits[0, -1, 5]
    by_pattern, by_z = seen.gradient("pattern", of=value), seen.gradient("z", of=value)
    values = run(lm, tokens[:1], "v")["v"][-1][0].repeat_interleave(lm.n_heads // lm.n_kv_heads, dim=1)
    expected = torch.einsum("dhv,shv->hds", by_z[-1][0], values)
    assert torch.allclose(by_pattern[-1][0].tril(), expected.tril(), atol=1e-10)


def test_hooks_at_coefficients_of_experts_follow_edits_and_read_gate_weights(tokens: torch.Tensor) -> None:
    lm, layer, index = tiny("qwen2_moe", torch.float64), 1, 7
    seen: dict[str, torch.Tensor] = {}

    def double(m: torch.Tensor, at: int) -> torch.Tensor:
        seen[f"coefficients {at}"] = m.clone()
        return m.mul_(2)

    def read(t: torch.Tensor, at: int) -> None:
        seen[f"gate weights {at}"] = t.clone()

    edits = [set_coefficient(layer, index, 1.5, [2])]
    found = run(lm, tokens[:1], ["coefficients", "mlp_out"], edits=edits, hooks={"coefficients": double})
    plain = run(lm, tokens[:1], "gate_weights", edits=edits, hooks={"gate_weights": read})
    assert float(seen[f"coefficients {layer}"][0, 2, index]) == 1.5
    for at in range(lm.n_layers):
        m = seen[f"coefficients {at}"]
        assert torch.equal(found.at("coefficients", at), 2 * m)
        torch.testing.assert_close(found.at("mlp_out", at), 2 * m @ lm.weights.W_out[at], rtol=1e-9, atol=1e-12)
        assert torch.equal(seen[f"gate weights {at}"], plain.at("gate_weights", at))
    with pytest.raises(InvalidInput, match="read the same tensor"):
        run(lm, tokens, hooks={"gate_weights": lambda t, _layer: t})
    with pytest.raises(InvalidInput, match="not a tensor of shape"):
        run(lm, tokens, hooks={"coefficients": lambda t, _layer: t[:1]})
    with pytest.raises(Unsupported, match="gate_weights: this tensor can be captured, but its gradient cannot"):
        run(lm, tokens, "gate_weights", grad=True)


def test_unsupported_hooks_and_gradients_are_refused_in_one_line(tokens: torch.Tensor) -> None:
    lm = tiny("llama")
    before = _hooks(lm)
    with pytest.raises(InvalidInput, match="other parts of the layer read the same tensor"):
        run(lm, tokens, hooks={"attn_in": lambda t, _layer: t + 1})
    with pytest.raises(InvalidInput, match="not a tensor of shape"):
        run(lm, tokens, hooks={"resid_post": lambda t, _layer: t[:1]})
    with pytest.raises(InvalidInput, match="is not one of"):
        run(lm, tokens, hooks={"nowhere": lambda t, _layer: t})
    with pytest.raises(PointMissing, match="which records the graph"):
        run(lm, tokens, "z").gradient("z", of=torch.zeros(()))
    with pytest.raises(InvalidInput, match="not a scalar computed"):
        run(lm, tokens, "z", grad=True).gradient("z", of=torch.zeros(()))
    assert _hooks(lm) == before


def test_a_users_own_torch_hook_is_included_or_named(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    ffn, block = lm.structure.blocks[0].feed_forward, lm.structure.blocks[1].module
    assert ffn is not None
    handle = ffn.output.register_forward_hook(lambda _m, _a, out: 1.5 * out)
    assert attribution(lm, tokens[:1], 5).error < 1e-4  # the account is of the model with the hook
    handle.remove()
    handle = block.register_forward_hook(
        lambda _m, _a, out: (1.5 * out[0], *out[1:]) if isinstance(out, tuple) else 1.5 * out
    )
    with pytest.raises(SumNotProved, match="remove hooks of your own"):
        attribution(lm, tokens[:1], 5)
    handle.remove()


def test_a_run_shows_its_size_and_points_and_no_tensor() -> None:
    shown = repr(run(tiny("gpt2"), torch.tensor([[1, 2, 3]]), ("resid_post", "z")))
    assert shown.startswith("Run(1 x 3 tokens, ") and "resid_post, z" in shown and "tensor" not in shown


def test_an_edit_before_the_first_token_is_refused(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    edit = set_coefficient(0, 1, 2.0, positions=[0, -10])
    for question in (lambda: lm.run(tokens, edits=edit), lambda: lm.trace(tokens[0], edits=edit)):
        with pytest.raises(OutOfRange, match="an edit at position -10: the prompt has 9 tokens, 0 to 8"):
            question()
    lm.run(tokens, edits=set_coefficient(0, 1, 2.0, positions=[8, -9]))


@pytest.mark.parametrize("position", [9, 99])
def test_an_edit_after_the_prompt_changes_no_pass_over_it(position: int, tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    plain, changed = lm.run(tokens).logits, lm.run(tokens, edits=set_coefficient(0, 1, 2.0, positions=[8])).logits
    later = lm.run(tokens, edits=set_coefficient(0, 1, 2.0, positions=[position]))
    both = lm.run(tokens, edits=set_coefficient(0, 1, 2.0, positions=[8, position]))
    assert torch.equal(later.logits, plain) and torch.equal(both.logits, changed)
    assert not torch.equal(plain, changed)

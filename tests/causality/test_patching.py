"""Patching equals hand-written hooks on the real modules, for every point and family."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from tests.conftest import tiny

import unembed
from unembed.causality.patching import patch
from unembed.causality.prompt_pair import GaussianNoise, align
from unembed.causality.replaced_pass import Replacement
from unembed.causality.rerun import Rerun
from unembed.errors import InvalidInput, OutOfRange, PointMissing
from unembed.language_model import LanguageModel
from unembed.names import PatchPoint

CLEAN = torch.tensor([5, 17, 23, 42, 11, 8])
CORRUPTED = torch.tensor([5, 60, 23, 42, 31, 8])
FAMILIES = ("gpt2-relu", "llama", "gemma2", "gptj", "qwen3", "opt", "falcon-7b")


def metric(logits: torch.Tensor) -> torch.Tensor:
    return logits[:, 7].double() - logits[:, 9].double()


@pytest.mark.parametrize("name", FAMILIES)
def test_each_point_equals_a_hook_on_the_real_module(name: str) -> None:
    lm = unembed.load(_double(name))
    a, b = CLEAN[None], CORRUPTED[None]
    for point in ("resid_pre", "resid_post", "attn_out", "mlp_out", "z", "coefficients"):
        given = lm.run(a, point)[point]
        for layer in range(lm.n_layers):
            for position, head in ((1, 2), (4, 0)):
                row = Replacement(
                    point,
                    layer,
                    torch.tensor([position]),
                    head if point == "z" else None,
                    given[layer, 0, [position], head] if point == "z" else given[layer, 0, [position]],
                )
                found = Rerun(lm, CORRUPTED).logits([[row]])[0]
                expected = _by_hand(lm, b, point, layer, position, head, given[layer])
                torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", FAMILIES)
def test_runs_of_both_prompts_are_patched_like_the_prompts(name: str) -> None:
    lm = unembed.load(_double(name))
    clean, corrupted = (lm.run(one, "resid_pre") for one in (CLEAN, CORRUPTED))
    points: tuple[PatchPoint, ...] = ("resid_pre", "resid_mid", "attn_out", "mlp_out", "z", "coefficients", "pattern")
    for point in points:
        if point == "resid_mid" and lm.structure.blocks[0].parallel:
            continue
        for layers in (None, [1]):
            found = patch(lm, clean, corrupted, point, metric, layers=layers, direction="noising")
            expected = patch(lm, CLEAN, CORRUPTED, point, metric, layers=layers, direction="noising")
            torch.testing.assert_close(found.values, expected.values, rtol=1e-9, atol=1e-9)
            if found.indices is not None and expected.indices is not None:
                assert torch.equal(found.indices, expected.indices)
            assert found.clean == pytest.approx(expected.clean, rel=1e-9)


def test_runs_are_not_run_again() -> None:
    lm = tiny("llama")
    clean, corrupted = (lm.run(one, "resid_pre") for one in (CLEAN, CORRUPTED))
    passes: list[int] = []
    handle = lm.structure.blocks[0].module.get_submodule("mlp").register_forward_hook(lambda *_: passes.append(1))
    patch(lm, clean, corrupted, "z", metric, layers=[1], positions=[3])
    before = len(passes)
    patch(lm, clean, corrupted, "z", metric, layers=[1], positions=[3])
    assert before == 1 and len(passes) == 1  # the one token that shows what blocks return
    patch(lm, CLEAN, CORRUPTED, "z", metric, layers=[1], positions=[3])
    handle.remove()
    assert len(passes) == 3


def _double(name: str) -> Any:
    from tests.families import build

    return build(name, torch.float64)


def _by_hand(
    lm: LanguageModel, tokens: torch.Tensor, point: str, layer: int, position: int, head: int, given: torch.Tensor
) -> torch.Tensor:
    """Plain torch hooks, written for this test alone."""
    block = lm.structure.blocks[layer]
    site, ffn = block.attention, block.feed_forward
    assert ffn is not None and ffn.down_proj is not None
    module, before, factor = {
        "resid_pre": (block.module, True, 1.0),
        "resid_post": (block.module, False, 1.0),
        "attn_out": (site.branch_norm.module if site.branch_norm else site.out_proj, False, site.multiplier),
        "mlp_out": (ffn.branch_norm.module if ffn.branch_norm else ffn.down_proj, False, ffn.multiplier),
        "z": (site.out_proj, True, 1.0),
        "coefficients": (ffn.down_proj, True, 1.0),
    }[point]

    def change(t: torch.Tensor) -> torch.Tensor:
        new = t.clone().view(1, tokens.shape[1], t.shape[-1])
        if point == "z":
            columns = slice(head * lm.d_head, (head + 1) * lm.d_head)
            new[0, position, columns] = given[0, position, head]
        else:
            new[0, position] = given[0, position] / factor
        return new.view(t.shape)

    def pre(_m: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": change(kwargs["hidden_states"])}

    def post(_m: Any, _args: Any, out: Any) -> Any:
        return change(out) if isinstance(out, torch.Tensor) else (change(out[0]), *out[1:])

    handle = module.register_forward_pre_hook(pre, with_kwargs=True) if before else module.register_forward_hook(post)
    with torch.no_grad():
        logits = lm.hf(tokens, use_cache=False).logits[0, -1]
    handle.remove()
    return logits


@pytest.mark.parametrize("name", ["gpt2-relu", "llama", "gemma2"])
def test_a_replaced_middle_of_the_stream_is_what_the_ffn_reads_and_is_added_to(name: str) -> None:
    lm = unembed.load(_double(name))
    given = lm.run(CLEAN, "resid_mid")["resid_mid"]

    def branch(block: Any, mid: torch.Tensor) -> torch.Tensor:
        """What the FFN adds, by the model's own modules."""
        if name == "gpt2-relu":
            return block.mlp(block.ln_2(mid))
        if name == "llama":
            return block.mlp(block.post_attention_layernorm(mid))
        return block.post_feedforward_layernorm(block.mlp(block.pre_feedforward_layernorm(mid)))

    for layer in range(lm.n_layers):
        for position in (1, 4):
            row = Replacement("resid_mid", layer, torch.tensor([position]), None, given[layer, 0, [position]])
            found = Rerun(lm, CORRUPTED).logits([[row]])[0]
            block: Any = lm.structure.blocks[layer].module

            def post(module: Any, _args: Any, out: Any, n: int = layer, p: int = position) -> Any:
                t = (out if isinstance(out, torch.Tensor) else out[0]).clone()
                mid = given[n, :, p]
                t[:, p] = mid + branch(module, mid)
                return t if isinstance(out, torch.Tensor) else (t, *out[1:])

            handle = block.register_forward_hook(post)
            with torch.no_grad():
                expected = lm.hf(CORRUPTED[None], use_cache=False).logits[0, -1]
            handle.remove()
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["gpt2-relu", "gptj", "llama", "gemma2"])
def test_a_replaced_pattern_equals_hooks_on_the_real_attention(name: str) -> None:
    lm = unembed.load(_double(name))
    lm.hf.set_attn_implementation("eager")
    given = lm.run(CLEAN, "pattern")["pattern"]
    for layer in range(lm.n_layers):
        for head in (0, 2):
            row = Replacement("pattern", layer, None, head, given[layer, 0, head])
            found = Rerun(lm, CORRUPTED).logits([[row]])[0]
            attention: Any = lm.structure.blocks[layer].attention.module
            with ExitStack() as stack:
                for handle in _pattern_hooks(attention, name, given[layer, 0, head], head, lm.d_head):
                    stack.callback(handle.remove)
                with torch.no_grad():
                    expected = lm.hf(CORRUPTED[None], use_cache=False).logits[0, -1]
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def _pattern_hooks(attention: Any, name: str, new: torch.Tensor, head: int, d_head: int) -> list[Any]:
    """Plain hooks that give one head another pattern: where its weights pass (GPT-J), or where they have been used."""
    if name == "gptj":

        def weights(_m: Any, _args: Any, out: torch.Tensor) -> torch.Tensor:
            out = out.clone()
            out[0, head] = new
            return out

        return [attention.attn_dropout.register_forward_hook(weights)]
    seen: list[torch.Tensor] = []
    if name in ("llama", "gemma2"):
        groups = attention.num_key_value_groups

        def mixed_values(_m: Any, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            z, kv = args[0].clone(), head // groups  # several heads share the values of one
            z[0, :, head * d_head : (head + 1) * d_head] = new @ seen[0][0, :, kv * d_head : (kv + 1) * d_head]
            return (z,)

        return [
            attention.v_proj.register_forward_hook(lambda _m, _a, out: seen.append(out)),
            attention.o_proj.register_forward_pre_hook(mixed_values),
        ]
    columns = slice(head * d_head, (head + 1) * d_head)

    def mixed(_m: Any, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        z = args[0].clone()
        z[0, :, columns] = new @ seen[0][0].chunk(3, dim=-1)[2][:, columns]  # queries, keys, values
        return (z,)

    return [
        attention.c_attn.register_forward_hook(lambda _m, _a, out: seen.append(out)),
        attention.c_proj.register_forward_pre_hook(mixed),
    ]


def test_a_replaced_pattern_is_the_pattern_times_the_runs_own_values() -> None:
    lm = unembed.load(_double("llama"))
    clean = Rerun(lm, CLEAN, ("pattern",))
    corrupted = Rerun(lm, CORRUPTED, ("pattern", "z"))
    row = [Replacement("pattern", 1, None, 2, clean.activation("pattern", 1)[2])]
    values = corrupted._captured["values", 1]
    z = clean.activation("pattern", 1)[2] @ values[2 // (lm.n_heads // len(values))]
    expected = corrupted.logits([[Replacement("z", 1, None, 2, z)]])[0]
    torch.testing.assert_close(corrupted.logits([row])[0], expected, rtol=1e-10, atol=1e-10)


def test_values_are_the_metric_and_recovered_runs_from_0_to_1() -> None:
    lm = tiny("gpt2-relu")
    found = patch(lm, CLEAN, CORRUPTED, "resid_post", metric)
    assert found.values.shape == (lm.n_layers, 6) and found.tokens == tuple(lm.token_strings(CORRUPTED))
    last = lm.n_layers - 1
    assert float(found.recovered[last, -1]) == pytest.approx(1.0, abs=1e-5)  # the last position alone is read
    assert float(found.recovered[last, 1]) == pytest.approx(0.0, abs=1e-5)
    assert float(found.recovered[0, 0]) == pytest.approx(0.0, abs=1e-5)  # the first tokens are equal
    noising = patch(lm, CLEAN, CORRUPTED, "resid_post", metric, direction="noising")
    assert float(noising.values[last, -1]) == pytest.approx(found.corrupted, abs=1e-5)
    assert float(noising.recovered[last, -1]) == pytest.approx(1.0, abs=1e-5)


def test_heads_and_memories_have_their_shapes() -> None:
    lm = tiny("gpt2-relu")
    assert patch(lm, CLEAN, CORRUPTED, "z", metric).values.shape == (2, 4)
    assert patch(lm, CLEAN, CORRUPTED, "z", metric, positions=[1, -2]).values.shape == (2, 4, 2)
    found = patch(lm, CLEAN, CORRUPTED, "coefficients", metric, top=3)
    assert found.indices is not None and found.values.shape == found.indices.shape == (2, 6, 3)
    row = next(r for r in found.to_table() if r["recovered"] is not None)
    assert {"layer", "position", "token", "index", "metric", "recovered"} <= set(row)


@pytest.mark.parametrize("point", ["resid_pre", "z", "coefficients"])
def test_chosen_layers_have_the_numbers_that_they_have_among_all(point: PatchPoint) -> None:
    lm = tiny("llama")
    clean, corrupted = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[5, 9, 7, 8]])
    whole, one = (patch(lm, clean, corrupted, point, layers=layers) for layers in (None, [-1]))
    assert one.layers == (lm.n_layers - 1,) and one.values.shape[0] == 1
    torch.testing.assert_close(one.values[0], whole.values[-1], rtol=1e-5, atol=1e-6)
    with pytest.raises(OutOfRange):
        patch(lm, clean, corrupted, point, layers=[99])
    with pytest.raises(InvalidInput, match="layers together with through"):
        patch(lm, clean, corrupted, ["L0H0"], through=["logits"], layers=[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_agrees_with_float32(dtype: torch.dtype) -> None:
    half, full = tiny("llama", dtype), unembed.load(_same_weights("llama", dtype))
    a = patch(half, CLEAN, CORRUPTED, "resid_pre", metric)
    b = patch(full, CLEAN, CORRUPTED, "resid_pre", metric)
    scale = float(b.values.abs().max())
    assert float((a.values - b.values).abs().max()) < (0.1 if dtype == torch.bfloat16 else 0.02) * scale


def _same_weights(name: str, dtype: torch.dtype) -> Any:
    from tests.families import build

    return build(name, dtype).float()


def test_noise_corrupts_chosen_embeddings_only() -> None:
    lm = tiny("gpt2-relu")
    found = patch(lm, CLEAN, GaussianNoise((1, 2), scale=3.0, seed=4), "resid_pre", metric)
    assert found.clean != found.corrupted and found.provenance.seed == 4
    assert float(found.recovered[0, 0]) == pytest.approx(0.0, abs=1e-5)
    again = patch(lm, CLEAN, GaussianNoise((1, 2), scale=3.0, seed=4), "resid_pre", metric)
    assert torch.equal(found.values, again.values)
    both = patch(lm, CLEAN, GaussianNoise((1,), seed=4), "resid_pre", metric)
    assert float(both.recovered[0, 1]) == pytest.approx(1.0, abs=1e-5)  # the only corrupted embedding restored
    with pytest.raises(InvalidInput, match="6 tokens"):
        patch(lm, CLEAN, GaussianNoise((6,)), "resid_pre", metric)


def test_unequal_prompts_need_an_alignment() -> None:
    lm = tiny("gpt2-relu")
    longer = torch.tensor([5, 17, 90, 91, 23, 42, 31, 8])
    with pytest.raises(InvalidInput, match="prompts of 6 and 8 tokens"):
        patch(lm, CLEAN, longer, "resid_pre", metric)
    found = patch(lm, CLEAN, longer, "resid_pre", metric, alignment="auto")
    assert found.positions == (0, 1, 4, 5, 6, 7) and "6 pairs" in found.alignment
    # Where one token stands for three, it corresponds to the last of them.
    three = torch.cat([CLEAN[:2], torch.tensor([90, 91, 92]), CLEAN[3:]])
    pairs, words = align(lm, CLEAN, three, "auto")
    assert pairs == [(0, 0), (1, 1), (2, 4), (3, 5), (4, 6), (5, 7)] and "5 of them equal, 2 tokens left out" in words
    found = patch(lm, CLEAN, three, "resid_pre", metric, alignment="auto")
    assert found.positions == (0, 1, 4, 5, 6, 7) and float(found.recovered[0, 2].abs()) > 1e-3
    pairs, words = align(lm, CLEAN, longer, [(0, 0), (5, 7)])
    assert pairs == [(0, 0), (5, 7)] and words == "given: 2 pairs of tokens"
    pairs, words = align(lm, CLEAN, CLEAN[:1] + 1, "auto")
    assert pairs == [(5, 0)] and words == "found: 1 pair of tokens, 0 of them equal, 5 tokens left out"
    with pytest.raises(InvalidInput, match="8 tokens"):
        align(lm, CLEAN, longer, [(0, 9)])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda lm: patch(lm, CLEAN, CLEAN, "resid_pre", metric), "it is .* in both runs"),
        (lambda lm: patch(lm, CLEAN, CORRUPTED, "embedding", metric), "cannot be patched"),
        (lambda lm: patch(lm, CLEAN, CORRUPTED, "z", unembed.logit_difference(3, 3)), "always 0"),
        (lambda lm: patch(lm, CLEAN, CORRUPTED, "z", metric, positions=[9]), "aligned with it"),
        (lambda lm: patch(lm, CLEAN, CORRUPTED, "z", lambda logits: logits), "shape"),
    ],
)
def test_bad_input_is_refused_in_one_line(call: Callable[[LanguageModel], object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        call(tiny("gpt2-relu"))
    with pytest.raises(PointMissing):
        patch(tiny("gptj"), CLEAN, CORRUPTED, "resid_mid", metric)

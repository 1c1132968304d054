"""Models with several streams, and streams that go through a norm: each writer's share against a forward recomputation.

The mixing is frozen as it was in the run, so that what one writer adds can be sent through the later blocks alone, in
float64, with the weights that the model's own modules returned; the sum over writers must give the logit.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import unembed
from tests.models.decoder_classes import tiny_model
from unembed.errors import PointMissing, Unsupported
from unembed.language_model import LanguageModel, load
from unembed.lens import final_scale, logit_direction
from unembed.logit_attribution import attribution, points_needed
from unembed.models.norms import ChannelGain, OpaqueNorm
from unembed.stream.decomposition import directions, writer_points, writers
from unembed.stream.run import run

HYPER = ("deepseek_v4", "hy_v4", "qwen4_exp_text")
SEVERAL = ("gemma3n_text", *HYPER)


@pytest.fixture(scope="module")
def models() -> dict[str, LanguageModel]:
    """Each model, opened once."""
    return {name: load(tiny_model(name)) for name in (*SEVERAL, "minimax", "rwkv")}


def _share(lm: LanguageModel, tokens: Tensor, layer: int, point: str) -> float:
    seen = run(lm, tokens, points_needed(lm, "component"))
    u = logit_direction(lm, 11) / final_scale(lm, seen.at("resid_post", lm.n_layers - 1)[0, -1])
    direction = directions(lm, u, seen, -1).steps[layer][point]
    return float(seen.at(point, layer)[0, -1].double() @ direction.double())


def _noted(modules: list[Any], lm: LanguageModel, tokens: Tensor) -> list[tuple[Tensor, Any]]:
    """What each module was last given and returned in a plain forward pass of the model."""
    notes: dict[int, tuple[Tensor, Any]] = {}
    handles = [
        m.register_forward_hook(lambda _m, a, out, i=i: notes.__setitem__(i, (a[0].clone(), out)))
        for i, m in enumerate(modules)
    ]
    with torch.no_grad():
        lm.hf(tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    for handle in handles:
        handle.remove()
    return [notes[i] for i in range(len(modules))]


def _post_and_comb(lm: LanguageModel, returned: Any, count: int) -> tuple[Tensor, Tensor]:
    eye = torch.eye(count, dtype=torch.float64)
    if lm.structure.family == "deepseek_v4":
        post, comb, _ = returned
        return post[0, -1].detach().double(), comb[0, -1].detach().double()
    return (returned[0] if lm.structure.family == "hy_v4" else returned[2])[0, -1].double(), eye


@torch.no_grad()
@pytest.mark.parametrize("name", HYPER)
@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("point", ["attn_out", "mlp_out"])
def test_a_writers_share_is_what_reaches_the_end_through_the_hyper_connections(
    name: str, layer: int, point: str, models: dict[str, LanguageModel], tokens: Tensor
) -> None:
    lm, prompt = models[name], tokens[:1]
    flat = name == "qwen4_exp_text"
    names = ("attn_hyper_connection", "mlp_hyper_connection") if flat else ("attn_hc", "ffn_hc")
    decoder = lm.hf.get_decoder()
    modules = [getattr(block, n) for block in decoder.layers for n in names]
    notes = _noted(modules, lm, prompt)
    count = lm.structure.streams.count  # type: ignore[union-attr]
    written = run(lm, prompt, point).at(point, layer)[0, -1].double()
    at = 2 * layer + (point == "mlp_out")
    post, _ = _post_and_comb(lm, notes[at][1], count)
    streams = post[:, None] * written
    for _, returned in notes[at + 1 :]:
        streams = _post_and_comb(lm, returned, count)[1].T @ streams
    end = decoder.hyper_connection_mixer if flat else decoder.hc_head
    ((given, collapsed),) = _noted([end], lm, prompt)
    whole = given[0, -1].double().view(count, -1)
    # What the end makes of the streams is linear at frozen weights, which follow from its own numbers.
    if flat:
        gate = end.hc_norm(given)
        weight = torch.sigmoid(
            end.input_mix_weight_up(torch.nn.functional.silu(end.input_mix_weight_down(gate) / count))
        )
        frozen = (weight * gate / given)[0, -1].double().view(count, -1).detach() / count
    else:
        frozen = torch.linalg.lstsq(whole.T, collapsed[0, -1].double()[:, None]).solution
    torch.testing.assert_close((frozen * whole).sum(0), collapsed[0, -1].double(), rtol=1e-5, atol=1e-6)
    u = logit_direction(lm, 11) / final_scale(lm, run(lm, prompt, "resid_post").at("resid_post", 3)[0, -1])
    expected = float((frozen * streams).sum(0) @ u.double())
    assert _share(lm, prompt, layer, point) == pytest.approx(expected, rel=2e-3, abs=1e-6)


@torch.no_grad()
def test_a_writers_share_is_what_reaches_the_end_through_altup(
    models: dict[str, LanguageModel], tokens: Tensor
) -> None:
    lm, prompt = models["gemma3n_text"], tokens[:1]
    decoder, config = lm.hf.get_decoder(), lm.hf.config
    n, layer = config.altup_num_inputs, 1
    gains: dict[int, list[Tensor]] = {}

    def note(number: int):
        return lambda _m, _a, out: gains.setdefault(number, []).append(out[0, -1].double())

    handles = [b.altup.prediction_coefs.register_forward_hook(note(2 * i)) for i, b in enumerate(decoder.layers)]
    handles += [b.altup.correction_coefs.register_forward_hook(note(2 * i + 1)) for i, b in enumerate(decoder.layers)]
    seen = run(lm, prompt, ["mlp_out", "streams_end", "resid_post"])
    for handle in handles:
        handle.remove()
    streams = (gains[2 * layer + 1][0] + 1)[:, None] * seen.at("mlp_out", layer)[0, -1].double()
    for later in range(layer + 1, lm.n_layers):
        coefficients = gains[2 * later][0].view(n, n).T  # what stream j gives to the prediction of k
        predicted = streams + coefficients.T @ streams
        innovation = predicted[0] * (0.5**0.5 - 1)  # the block itself adds nothing but what came in, times sqrt(1/2)
        streams = predicted + (gains[2 * later + 1][0] + 1)[:, None] * innovation
    ends = seen.at("streams_end", 3)[0, -1].double()
    length, total = ends[0].square().mean().sqrt(), streams[0] / n
    for k, projection in enumerate(decoder.altup_unembed_projections, start=1):
        y = projection.weight.double() @ ends[k]
        total = total + (projection.weight.double() @ streams[k]) * length / y.square().mean().sqrt() / n
    u = logit_direction(lm, 11) / final_scale(lm, seen.at("resid_post", 3)[0, -1])
    assert _share(lm, prompt, layer, "mlp_out") == pytest.approx(float(total @ u.double()), rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("name", SEVERAL)
def test_the_last_reading_is_the_models_own_and_sums_close_everywhere(
    name: str, models: dict[str, LanguageModel], tokens: Tensor
) -> None:
    lm = models[name]
    read = lm.trace(tokens[:1]).readings(top=1).ids[-1, :, 0]
    assert torch.equal(read, lm.run(tokens[:1]).logits[0].argmax(-1))
    for by in ("component", "head"):
        for position in (0, 4, -1):
            assert attribution(lm, tokens[:1], 11, position, against=5, by=by).error < 1e-4


@pytest.mark.parametrize("name", SEVERAL)
def test_what_needs_one_stream_is_refused_by_name(name: str, models: dict[str, LanguageModel], tokens: Tensor) -> None:
    lm = models[name]
    seen = run(lm, tokens[:1], ["resid_pre", "resid_post", *writer_points(lm)])
    with pytest.raises(Unsupported, match="4 streams, mixed differently"):
        writers(lm, seen, "resid_post", 1)
    with pytest.raises(PointMissing, match="several streams"):
        run(lm, tokens, "resid_mid")
    with pytest.raises(Unsupported, match="4 streams"):
        lm.patch(tokens[:1], tokens[1:2], "resid_pre")
    norm = lm.structure.blocks[0].feed_forward.pre_norm  # type: ignore[union-attr]
    assert isinstance(norm, OpaqueNorm)
    with pytest.raises(Unsupported, match="mixture of several streams"):
        _ = norm.gain


@pytest.mark.parametrize("name", SEVERAL)
def test_total_effects_and_edits_work_with_several_streams(
    name: str, models: dict[str, LanguageModel], tokens: Tensor
) -> None:
    lm = models[name]
    effects = lm.trace(tokens[:1]).attribution(11, by="head").with_effects(20)
    row = next(r for r in effects.rows if r.total is not None and r.index is not None)
    plain, off = (
        lm.run(tokens[:1], edits=edits).logits[0, -1, 11]
        for edits in ([], [unembed.scale_head(row.layer, row.index, 0.0, positions="last")])
    )
    assert row.total == pytest.approx(float(plain - off), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", ["minimax", "rwkv"])
def test_a_norm_on_the_stream_itself_rescales_earlier_writers(
    name: str, models: dict[str, LanguageModel], tokens: Tensor
) -> None:
    lm = models[name]
    block = lm.structure.blocks[0]
    assert block.entry_norm is not None and (block.middle_norm is not None) == (name == "minimax")
    seen = run(lm, tokens, ["resid_pre", "resid_post", *writer_points(lm)])
    for point in ("resid_pre", "resid_mid", "resid_post"):
        if point in seen:
            assert writers(lm, seen, point, 2).error < 1e-5, point
    assert attribution(lm, tokens[:1], 11).error < 1e-4


def test_a_gain_per_channel_between_a_branch_and_the_stream_is_part_of_what_it_writes(tokens: Tensor) -> None:
    lm = load(tiny_model("zaya"))
    for block in lm.structure.blocks:
        scaling = block.module.post_attention_residual_scale
        assert block.mixer is not None and isinstance(block.mixer.branch_norm, ChannelGain)
        torch.testing.assert_close(block.mixer.branch_norm.gain, scaling.hidden_states_scale, rtol=1e-2, atol=1e-4)
    seen = run(lm, tokens, ["resid_pre", "resid_post", *writer_points(lm)])
    for layer in range(lm.n_layers):
        assert writers(lm, seen, "resid_post", layer).error < 1e-5
    whole, heads = (attribution(lm, tokens[:1], 11, by=by) for by in ("component", "head"))
    for layer in range(lm.n_layers):
        assert float(heads.contribution[heads.layer == layer].sum()) == pytest.approx(
            float(whole.contribution[whole.layer == layer].sum()), rel=1e-4, abs=1e-5
        )
    silenced = run(lm, tokens, "attn_out", [unembed.scale_attention(1, 0.0)])
    assert float(silenced.at("attn_out", 1).abs().max()) < 1e-5
    own = run(lm, tokens[:1], "attn_out").at("attn_out", 1)

    def put(written: Tensor, layer: int) -> Tensor | None:
        if layer != 1:
            return None
        return torch.cat([written[:, :-1], own[:, -1:]], dim=1)

    found = lm.patch(tokens[:1], tokens[1:2], "attn_out", unembed.logit_difference(11, 5))
    logits = lm.run(tokens[1:2], hooks={"attn_out": put}).logits[0, -1]
    assert float(found.values[1, -1]) == pytest.approx(float(logits[11] - logits[5]), rel=1e-4, abs=1e-5)
    assert float(found.values[1, -1]) != pytest.approx(found.corrupted, rel=1e-3, abs=1e-4)


def test_a_convolution_behind_a_branch_refuses_its_heads_and_memories_by_name(tokens: Tensor) -> None:
    lm = load(tiny_model("inkling_text"))
    assert attribution(lm, tokens[:1], 11).error < 1e-4
    weights = run(lm, tokens, "pattern").at("pattern", 0)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), rtol=0, atol=1e-5)
    with pytest.raises(PointMissing, match="InklingShortConvolution, which mixes positions"):
        attribution(lm, tokens[:1], 11, by="head")
    with pytest.raises(Unsupported, match="InklingShortConvolution, which mixes positions"):
        attribution(lm, tokens[:1], 11, by="memory")


def test_layers_that_use_the_keys_and_values_of_another_layer_have_sources(tokens: Tensor) -> None:
    lm = load(tiny_model("gemma4_text"))
    blocks = lm.structure.blocks
    places = [next(n for n, a in enumerate(blocks) if b.attention.values.module in a.module.modules()) for b in blocks]  # type: ignore[union-attr]
    assert places == [0, 1, 1, 0]
    assert attribution(lm, tokens[:1], 11, by="source").error < 1e-4
    with pytest.raises(Unsupported, match="keys and values of another layer"):
        lm.weights.W_V[3]


def test_a_stream_that_is_halved_between_blocks_keeps_its_sum(tokens: Tensor) -> None:
    from transformers import RwkvForCausalLM

    from tests.models.decoder_classes import tiny_config

    config = tiny_config("rwkv")
    config.rescale_every = 2
    torch.manual_seed(0)
    lm = load(RwkvForCausalLM(config).eval())
    assert [b.handover for b in lm.structure.blocks] == [1.0, 0.5, 1.0, 0.5]
    seen = run(lm, tokens, ["resid_pre", "resid_post"])
    torch.testing.assert_close(seen.at("resid_post", 1), seen.at("resid_pre", 2), rtol=0, atol=0)
    assert attribution(lm, tokens[:1], 11).error < 1e-4

"""Layers whose mixer is not plain attention, streams that are rescaled, and mixed dense and expert layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unembed
from tests.models.decoder_classes import PAGE, decoder_classes, tiny_model
from tests.sweeps.recorder import lettered
from unembed.attention import Circuits
from unembed.errors import ModelNotUnderstood, PointMissing, UnembedError, Unsupported
from unembed.index import Index
from unembed.language_model import LanguageModel, load
from unembed.logit_attribution import attribution
from unembed.models import model_sizes
from unembed.stream.decomposition import writer_points, writers
from unembed.stream.run import run

MIXERS = ("qwen3_5", "falcon_h1", "lfm2_moe", "jamba", "mamba2", "nemotron_h", "olmo_hybrid", "recurrent_gemma")
LATENT = ("deepseek_v3", "youtu")
GATED = ("qwen3_5", "bitnet", "granite_swa", "afmoe")
MIXED = ("glm4_moe", "dots1", "ernie4_5_moe")


def _lm(model_type: str) -> LanguageModel:
    return load(tiny_model(model_type))


@pytest.mark.parametrize("model_type", [*MIXERS, *LATENT, "doge", "gemma4_text"])
def test_the_stream_is_the_sum_of_its_writers_at_every_layer(model_type: str, tokens: torch.Tensor) -> None:
    lm = _lm(model_type)
    seen = run(lm, tokens, ["resid_pre", "resid_post", *writer_points(lm)])
    for layer in range(lm.n_layers):
        assert writers(lm, seen, "resid_post", layer).error < 1e-5


@pytest.mark.parametrize("model_type", MIXERS)
def test_a_mixer_is_a_writer_and_has_no_pattern(model_type: str, tokens: torch.Tensor) -> None:
    lm = _lm(model_type)
    assert attribution(lm, tokens[:1], 11).error < 1e-4
    if model_type == "falcon_h1":  # Mamba beside attention: another writer of the same block
        assert [w.label for w in lm.structure.blocks[0].early_writers] == ["mamba"]
        return
    layer = next(n for n, b in enumerate(lm.structure.blocks) if b.mixer is not None and not b.mixer.is_attention)
    with pytest.raises(PointMissing, match="no attention"):
        run(lm, tokens, "pattern", layers=[layer])
    with pytest.raises(Unsupported, match="this layer has none"):
        lm.weights.W_Q[layer]


@pytest.mark.parametrize("model_type", [*GATED, *LATENT])
def test_sources_of_gated_and_latent_attention_add_up_to_their_heads(model_type: str, tokens: torch.Tensor) -> None:
    lm = _lm(model_type)
    heads, sources = (attribution(lm, tokens[:1], 11, by=by) for by in ("head", "source"))
    for layer in range(lm.n_layers):
        for head in range(lm.n_heads):
            whole, parts = (
                a.contribution[(a.layer == layer) & (a.index == head) & (a.kind == a.kinds.index("head"))].sum()
                for a in (heads, sources)
            )
            torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-5)
    assert any(r.source is not None for r in sources.rows)


@pytest.mark.parametrize("model_type", ["rwkv", "falcon_h1", "recurrent_gemma", "lfm2_moe", "xlstm"])
def test_indexes_events_and_steering_need_no_attention(model_type: str, tmp_path: Path) -> None:
    lm = load(tiny_model(model_type), tokenizer=lettered("gpt2").tokenizer)
    texts = ["abcabd", "the year is old", "a garden in May"]
    index = Index.build(lm, texts, tmp_path / "index", top=3)
    layer = lm.memory_layers[-1]
    stored, position = index.pole("positive")
    m = torch.cat([run(lm, text, "coefficients").at("coefficients", layer)[0] for text in texts])
    for number in range(0, lm.n_memories_of(layer), 7):
        row = index.row(layer, number)
        best = m[:, number].sort(descending=True).values[:3]
        listed = torch.from_numpy(stored[row][position[row] >= 0].copy())
        torch.testing.assert_close(listed, best[best > 0], rtol=1e-4, atol=1e-6)
    trace = lm.trace(texts[0])
    saturated = [e.layer for e in trace.events(-1) if e.kind == "saturation"]
    first = trace.readings().ids[:, -1, 0]
    assert saturated == [next(n for n in range(lm.n_layers) if (first[n:] == first[-1]).all())]
    steer = torch.ones(lm.d_model)
    plain, steered = (run(lm, texts[0], "resid_post", e) for e in ([], [unembed.add_vector(0, steer)]))
    torch.testing.assert_close(steered.at("resid_post", 0), plain.at("resid_post", 0) + 1, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(steered.logits, plain.logits)


def test_the_scale_of_a_later_layer_multiplies_what_earlier_writers_contribute(tokens: torch.Tensor) -> None:
    lm = _lm("gemma4_text")
    gains = [b.exit_gain for b in lm.structure.blocks]
    scalars = [float(layer.layer_scalar) for layer in lm.hf.model.layers]
    assert gains == pytest.approx(scalars, rel=1e-4) and max(abs(g - 1) for g in gains) > 0.01
    found = attribution(lm, tokens[:1], 11)
    assert found.error < 1e-4
    assert "per_layer_projection" in {r.label.split()[0] for r in found.rows}
    unscaled = sum(r.contribution / torch.tensor(gains[r.layer or 0 :]).prod() for r in found.rows)
    largest = max(abs(r.contribution) for r in found.rows)
    assert abs(float(unscaled) - found.logit) > 1e-3 * largest  # without the gains the sum misses


@pytest.mark.parametrize("model_type", MIXED)
def test_a_model_that_mixes_dense_and_expert_layers_can_be_traced(model_type: str, tokens: torch.Tensor) -> None:
    lm = _lm(model_type)
    experts = lm.feed_forward(1).experts
    assert experts is not None and experts.n_memories == lm.n_memories_of(1) != lm.n_memories_of(0) == 80
    assert lm.d_mlp == 0
    trace = lm.trace(tokens[0])
    assert trace.readings(top=3).ids.shape[0] == lm.n_layers and trace.attribution(11).error < 1e-4
    seen = run(lm, tokens, "coefficients")
    assert seen.at("coefficients", 0).shape[-1] == 80
    with pytest.raises(PointMissing, match=r"width differs.*run\.at"):
        seen["coefficients"]
    assert trace.sub_updates(0, top=3)[0].layer == 0 and trace.sub_updates(1, top=3)[0].layer == 1


@pytest.mark.parametrize(
    ("model_type", "why"),
    [
        ("cpmant", "prompt before the tokens"),
        ("hrm_text", "recurrent in depth"),
        ("modernbert-decoder", "an activation"),
        ("inkling2_text", "mixture of the outputs of earlier groups of layers"),
        ("longcat_flash", "contains two attentions"),
        ("openai-gpt", "normalise the stream itself"),
    ],
)
def test_models_of_other_shapes_are_refused_and_not_crashed(model_type: str, why: str) -> None:
    with pytest.raises(ModelNotUnderstood, match=why):
        _lm(model_type)


def test_edits_of_a_mixers_heads_hold(tokens: torch.Tensor) -> None:
    lm = _lm("qwen3_5")
    assert not lm.structure.blocks[0].mixer.is_attention
    silenced = run(lm, tokens, "attn_out", [unembed.scale_head(0, h, 0.0) for h in range(4)])
    assert float(silenced.at("attn_out", 0).abs().max()) == 0


def test_a_gated_norm_is_refused_as_not_linear(tokens: torch.Tensor) -> None:
    lm = _lm("axk2")
    assert attribution(lm, tokens[:1], 11, by="head").error < 1e-4
    norm = lm.structure.blocks[1].attention.pre_norm
    assert norm is not None
    with pytest.raises(Unsupported, match=r"AXK2GatedRMSNorm.*cannot be called|AXK2GatedRMSNorm.*neither"):
        _ = norm.gain


def test_cross_attention_that_a_text_prompt_skips_is_not_a_layer(tokens: torch.Tensor) -> None:
    lm = _lm("mllama")
    assert lm.n_layers == 3 and [b.path.rsplit(".", 1)[-1] for b in lm.structure.blocks] == ["0", "1", "2"]
    assert lm.hf.config.get_text_config().num_hidden_layers == 4
    assert attribution(lm, tokens[:1], 11, by="source").error < 1e-4


@torch.no_grad()
def test_rows_of_the_embedding_that_are_never_predicted_are_not_tokens() -> None:
    lm = load(tiny_model("mllama"), tokenizer=lettered("gpt2").tokenizer)
    table, head = lm.hf.get_input_embeddings().weight, lm.hf.lm_head.weight
    assert len(table) == 105 and lm.d_vocab == len(head) == 97
    attention = lm.hf.model.layers[0].self_attn
    W_V, W_O = attention.v_proj.weight[:16].T, attention.o_proj.weight[:, :16].T
    found = Circuits(lm).ov_full(0, 0, centre=False).dense()
    torch.testing.assert_close(found, table[:97] @ W_V @ W_O @ head.T, rtol=1e-4, atol=1e-6)
    assert Circuits(lm).skip_trigrams(0, 0, 3) and Circuits(lm).direct_path(["the cat sat on the mat. " * 20])


def test_linear_attention_has_no_pattern_whatever_its_name(tokens: torch.Tensor) -> None:
    lm = _lm("bailing_hybrid")
    kinds = [b.mixer is not None and b.mixer.is_attention for b in lm.structure.blocks]
    assert kinds == [False, True, False, True]
    assert attribution(lm, tokens[:1], 11, by="source").error < 1e-4


NOT_BY_SOURCE = {
    "deepseek_v4": "and the heads' output is rotated back",
    "jetmoe": "chooses the query and output projections of its heads among experts",
    "inkling_text": "goes through InklingShortConvolution",
    "mamba": "MambaMixer does not end in a projection over heads",
    "mamba2": "it is a Mamba2Mixer",
    "falcon_mamba": "FalconMambaMixer does not end in a projection over heads",
    "rwkv": "RwkvSelfAttention does not end in a projection over heads",
    "xlstm": "it is a xLSTMLayer",
    "zamba": "it is a Zamba",
    "zamba2": "it is a Zamba2",
}
"""Every open class without attributions by source, and the part of its architecture that forbids them."""


@pytest.mark.parametrize(("model_type", "why"), NOT_BY_SOURCE.items())
def test_a_refusal_of_sources_names_the_part_of_the_architecture(
    model_type: str, why: str, tokens: torch.Tensor
) -> None:
    with pytest.raises(UnembedError, match=why):
        attribution(_lm(model_type), tokens, 11, by="source")


def test_every_class_without_sources_is_among_the_tested_refusals() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines() if "| " in line]
    by_name = decoder_classes()
    without = {by_name[row[0]] for row in rows if row[0] in by_name and row[1] == "yes" and row[3] in ("no", "–")}
    assert without == set(NOT_BY_SOURCE)


def test_values_of_which_half_come_from_the_position_before_give_sources(tokens: torch.Tensor) -> None:
    """ZAYA: a module returns queries, keys and values, and the values are what its pattern mixes."""
    lm = _lm("zaya")
    seen = run(lm, tokens[:1], ["values", "pattern", "z", "resid_pre"])
    for layer, block in enumerate(lm.hf.model.layers):
        own = block.self_attn.qkv_proj
        x = block.input_layernorm(seen.at("resid_pre", layer))
        values = seen.at("values", layer)  # (batch, kv_head, pos, d_head)
        flat = values.transpose(1, 2).flatten(2)
        now, before = flat.chunk(2, dim=-1)
        torch.testing.assert_close(now, own.v_proj_current(x), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(before[:, 1:], own.v_proj_delayed(x)[:, :-1], rtol=1e-5, atol=1e-6)
        mixed = seen.at("pattern", layer) @ values.repeat_interleave(2, dim=1)
        torch.testing.assert_close(mixed.transpose(1, 2), seen.at("z", layer), rtol=1e-4, atol=1e-6)
    by_source, by_head = (attribution(lm, tokens[:1], 11, by=by) for by in ("source", "head"))
    for row in by_head.rows:
        if row.label.startswith("head"):
            own = by_source.contribution[(by_source.layer == row.layer) & (by_source.index == row.index)]
            assert len(own) == tokens.shape[1] and float(own.sum()) == pytest.approx(row.contribution, abs=1e-6)


@pytest.mark.parametrize(
    ("model_type", "why"),
    [
        ("axk2", "with and without its norm"),
        ("diffllama", "two softmaxes"),
        ("zaya", "a convolution over positions"),
        ("doge", "a term computed from the values"),
        ("llama4_text", "divided by their size"),
        ("codegen", "four blocks of one matrix"),
        ("deepseek_v4", "its keys, rotated, are its values"),
        ("jetmoe", "among experts"),
        ("inkling_text", "mixes positions"),
    ],
)
def test_a_refusal_of_a_qk_circuit_names_the_part_of_the_architecture(model_type: str, why: str) -> None:
    with pytest.raises(UnembedError, match=why):
        Circuits(_lm(model_type)).qk(1, 0)


def test_folded_copying_is_refused_for_what_the_raw_basis_lacks_too() -> None:
    with pytest.raises(Unsupported, match="its keys, rotated, are its values"):
        Circuits(_lm("deepseek_v4")).copying("folded")
    with pytest.raises(Unsupported, match=r"4 streams.* Use basis='raw'"):
        Circuits(_lm("hy_v4")).copying("folded")
    assert Circuits(_lm("hy_v4")).copying("raw").score.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize(
    "model_type", ["gpt_oss", "flint", "mimo_v2_flash", "minimax", "recurrent_gemma", "llama4_text"]
)
def test_scores_add_up_beside_a_sink_in_a_window_and_with_angles_of_the_attention_itself(model_type: str) -> None:
    lm, tokens = _lm(model_type), torch.arange(3, 15)
    understood = [n for n in lm.attention_layers if lm.structure.blocks[n].attention.scores.understood]
    assert understood == ([3] if model_type == "llama4_text" else list(lm.attention_layers))
    for layer in understood:
        found = Circuits(lm).score_terms(tokens, layer, 1)
        pattern = run(lm, tokens[None], ["pattern"]).at("pattern", layer)[0, 1]
        shares = pattern.sum(-1)
        has_sink = model_type in ("gpt_oss", "flint") or (model_type == "mimo_v2_flash" and layer > 0)
        assert bool((shares < 0.999).all()) == has_sink
        rows, columns = pattern.nonzero(as_tuple=True)
        # Differences of scores in a row are those of the logarithms of the model's own weights.
        scores = found.scores[rows, columns] - found.scores.diagonal()[rows]
        expected = pattern[rows, columns].double().log() - pattern.diagonal()[rows].double().log()
        torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("model_type", "words"),
    [("jetmoe", "heads with one joint output"), ("inkling_text", "heads with one joint output"), ("mamba", "no heads")],
)
def test_heads_that_attend_without_an_output_of_their_own_are_named_so(model_type: str, words: str) -> None:
    lm = _lm(model_type)
    assert lm.heads_a_layer == words and words in repr(lm) and model_sizes(lm)["heads_a_layer"] == words
    if model_type != "mamba":  # their patterns are known all the same
        assert Circuits(lm).head_scores(n_sequences=2, length=8).by_sequence[0].isfinite().all()

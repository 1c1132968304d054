"""Head scores equal sums over the model's own patterns, and find the heads of a circuit made by hand."""

import pytest
import torch

import unembed
from tests.attention.handmade_model import induction_model
from tests.conftest import tiny
from tests.models.decoder_classes import tiny_model
from unembed.attention.behaviour import head_scores as room
from unembed.attention.behaviour.head_scores import KINDS, HeadScores
from unembed.attention.behaviour.repeated_pattern import repeated_tokens
from unembed.errors import InvalidInput, Unsupported
from unembed.language_model import load
from unembed.lens import final_scale
from unembed.results import Provenance

NAMES = ["attention-only", "gpt2", "llama", "gemma2", "gpt_neox", "gptj", "granite"]


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_sums_over_the_captured_patterns(name: str) -> None:
    lm = tiny(name)
    scores = unembed.circuits(lm).head_scores(seed=4, n_sequences=3, length=10)
    tokens, front = repeated_tokens(lm, 3, 10, seed=4)
    assert front == 0 and torch.equal(tokens[:, :10], tokens[:, 10:])
    pattern = lm.run(tokens, "pattern")["pattern"]  # (layer, batch, head, dst, src)
    expected = torch.zeros(5, 3, 2, 4)
    for i in range(1, 20):
        expected[0] += pattern[:, :, :, i, i - 1].transpose(0, 1) / 19
        expected[4] += pattern[:, :, :, i, 0].transpose(0, 1) / 19
    for i in range(10, 20):
        expected[1] += pattern[:, :, :, i, i - 10].transpose(0, 1) / 10
        expected[2] += pattern[:, :, :, i, i - 9].transpose(0, 1) / 10
    for kind in (0, 1, 2, 4):
        torch.testing.assert_close(scores.by_sequence[kind].float(), expected[kind], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(scores[KINDS[kind]].float(), expected[kind].mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_direct_effects_are_the_shares_of_attributions(name: str) -> None:
    """Attributions prove that a logit is the sum of its heads' shares."""
    lm = tiny(name)
    tokens, _ = repeated_tokens(lm, 1, 4, seed=4)
    trace, run = lm.trace(tokens), lm.run(tokens, ("z", "resid_post"))
    every = torch.arange(lm.d_vocab)[:, None].expand(-1, 4)
    readout, scale = (
        room._centred_unembedding(lm, torch.arange(lm.d_vocab)),
        final_scale(lm, run.at("resid_post", 1)[0, -1]),
    )
    for layer in range(2):
        z = run.at("z", layer)[0, -1:].expand(lm.d_vocab, -1, -1)
        effects = room._direct_effects(lm, layer, z, readout[every]) / scale
        torch.testing.assert_close(effects.mean(0), torch.zeros(4), rtol=0, atol=1e-5)
        for token, against in ((3, 50), (96, 8)):
            rows = trace.attribution(token, against=against, by="head").rows
            shares = torch.tensor([r.contribution for r in rows if r.layer == layer and r.index is not None])
            torch.testing.assert_close(effects[token] - effects[against], shares, rtol=1e-4, atol=1e-4)


def test_direct_effects_go_through_the_gains_of_later_layers() -> None:
    lm = load(tiny_model("gemma4_text"))  # whose layers multiply the stream by a scalar
    tokens, _ = repeated_tokens(lm, 1, 4, seed=4)
    trace, run = lm.trace(tokens), lm.run(tokens, ("z", "resid_post"))
    scale = final_scale(lm, run.at("resid_post", lm.n_layers - 1)[0, -1])
    readouts = room._readouts(lm, torch.arange(lm.d_vocab))
    rows = trace.attribution(3, against=50, by="head").rows
    for layer in range(lm.n_layers):
        z = run.at("z", layer)[0, -1:].expand(2, -1, -1)
        effects = room._direct_effects(lm, layer, z, readouts[layer][[3, 50]][:, None].expand(-1, 4, -1)) / scale
        shares = torch.tensor([r.contribution for r in rows if r.layer == layer and r.label.startswith("head")])
        torch.testing.assert_close(effects[0] - effects[1], shares, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("model_type", "layers"), [("qwen3_next", [3]), ("granitemoehybrid", [1, 3]), ("lfm3", [2])])
def test_a_layer_without_attention_has_no_score(model_type: str, layers: list[int], dtype: torch.dtype) -> None:
    lm = load(tiny_model(model_type).to(dtype))
    scores = unembed.circuits(lm).head_scores(seed=4, n_sequences=2, length=6)
    for kind in KINDS:
        assert (~scores[kind].isnan()).any(dim=1).nonzero()[:, 0].tolist() == layers
        assert not scores[kind][layers].isnan().any() and not scores.interval(kind)[layers].isnan().any()
        assert {layer for layer, _, _ in scores.top(kind, 100)} == set(layers)
    table = scores.to_table()
    assert table["layer"] == [n for n in layers for _ in range(4)] and None not in table["copying"]
    assert f"(L{layers[0]}H" in repr(scores) or f"(L{layers[-1]}H" in repr(scores)


@pytest.mark.parametrize(
    ("model_type", "why"),
    [
        ("jetmoe", "chooses the query and output projections of its heads among experts"),
        ("inkling_text", "goes through InklingShortConvolution"),
        ("minimax", "the stream is normalised on its way"),
        ("qwen4_exp", "streams, mixed differently"),
    ],
)
def test_patterns_are_scored_where_the_effect_of_a_head_is_not_defined(model_type: str, why: str) -> None:
    lm = load(tiny_model(model_type))
    scores = unembed.circuits(lm).head_scores(seed=4, n_sequences=2, length=6)
    tokens, _ = repeated_tokens(lm, 2, 6, seed=4)
    run = lm.run(tokens, "pattern")
    missing = room.effects_missing(lm)
    assert tuple(missing) == lm.attention_layers and all(why in reason for reason in missing.values())
    for layer in lm.attention_layers:
        previous = run.at("pattern", layer).diagonal(-1, dim1=-2, dim2=-1).mean(dim=(0, -1))
        torch.testing.assert_close(scores.previous_token[layer].float(), previous.float(), rtol=1e-4, atol=1e-6)
    assert scores.copying.isnan().all() and scores.top("copying") == []
    assert set(scores.to_table()["copying"]) == {None}


@pytest.mark.parametrize("model_type", ["mamba", "mamba2", "rwkv"])
def test_a_model_without_attention_has_no_head_scores(model_type: str) -> None:
    with pytest.raises(Unsupported, match=r"its layers have (Mamba|RWKV).* instead of attention"):
        unembed.circuits(load(tiny_model(model_type))).head_scores()


@pytest.mark.parametrize("name", ["attention-only", "gemma2"])
def test_copying_is_the_mean_direct_effect_on_the_attended_token(name: str) -> None:
    lm = tiny(name)
    scores = unembed.circuits(lm).head_scores(seed=4, n_sequences=2, length=5)
    tokens, _ = repeated_tokens(lm, 2, 5, seed=4)
    run = lm.run(tokens, ("z", "pattern", "resid_post"))
    readout = room._centred_unembedding(lm, torch.arange(lm.d_vocab))
    for layer in range(2):
        for head in range(4):
            effects = []
            for row in range(2):
                for dst in range(5, 10):
                    ids = tokens[row, run.at("pattern", layer)[row, head, dst].argmax()].expand(1, 4)
                    effect = room._direct_effects(lm, layer, run.at("z", layer)[row, dst][None], readout[ids])
                    effects.append(effect[0, head] / final_scale(lm, run.at("resid_post", 1)[row, dst])[0])
            expected = torch.stack(effects).mean()
            torch.testing.assert_close(scores.copying[layer, head].float(), expected, rtol=1e-4, atol=1e-5)


def test_the_heads_of_a_made_induction_circuit_are_found() -> None:
    lm = induction_model()
    circuits = unembed.circuits(lm)
    scores = circuits.head_scores(n_sequences=20, length=10)
    assert scores.previous_token[0, 0] > 0.99 and scores.top("previous_token", 1)[0][:2] == (0, 0)
    assert scores.resting[0, 1] > 0.99
    # A random sequence holds some tokens twice, and there an induction head looks at several places.
    assert scores.induction[1, 0] > 0.8 and scores.top("induction", 1)[0][:2] == (1, 0)
    assert scores.copying[1, 0] > 7 > 0 > scores.copying[1, 1]
    assert circuits.copying_scores()[0].abs().max() < 1e-9, "what 0.0 writes is never read by the unembedding"
    assert circuits.composition("k")[0, :, 1].argmax() == 0


def test_intervals_narrow_with_more_sequences_and_seeds_repeat() -> None:
    circuits = unembed.circuits(tiny("gpt2"))
    few, many = (circuits.head_scores(n_sequences=n, length=8) for n in (8, 128))
    assert many.interval("induction").mean() < few.interval("induction").mean() / 2
    again = circuits.head_scores(n_sequences=8, length=8)
    assert torch.equal(again.by_sequence, few.by_sequence)
    assert not torch.equal(circuits.head_scores(1, n_sequences=8, length=8).by_sequence, few.by_sequence)


def test_bad_questions_are_refused_with_the_reason() -> None:
    circuits = unembed.circuits(tiny("gpt2"))
    assert circuits.head_scores(n_sequences=2).length == 32, "the context holds no more"
    with pytest.raises(InvalidInput, match="at most 32"):
        circuits.head_scores(length=33)
    with pytest.raises(InvalidInput, match="second half"):
        circuits.head_scores(tokens=torch.arange(10)[None])
    with pytest.raises(InvalidInput, match="head score 'x'"):
        circuits.head_scores(n_sequences=1, length=4)["x"]


def test_scores_show_the_largest_head_of_each_kind_and_no_tensor() -> None:
    by_sequence = torch.zeros(len(KINDS), 3, 2, 4)
    by_sequence[2, :, 1, 3] = 0.75
    shown = repr(HeadScores.of(by_sequence, 8, Provenance("wren", None, "float32")))
    assert shown.startswith("HeadScores(2 layers of 4 heads") and "induction 0.75 (L1H3)" in shown
    assert "tensor" not in shown

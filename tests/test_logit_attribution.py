"""Attributions add up for every family, mean what they say, and refuse when an unseen writer adds to the stream."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.conftest import tiny
from tests.families import FAMILIES, WITH_MEMORIES, build
from tests.models.decoder_classes import tiny_model
from unembed.errors import InvalidInput, NotOneToken, OutOfRange, PointMissing, SumNotProved, Unsupported
from unembed.language_model import load
from unembed.lens import final_scale, logit_direction
from unembed.logit_attribution import attribution, kinds_of, memory_contributions, points_needed
from unembed.names import BY, SUM_TOLERANCE
from unembed.results import format_signed
from unembed.stream.decomposition import writers
from unembed.stream.interventions import scale_ffn, scale_head, set_coefficient
from unembed.stream.run import run

POSSIBLE = [
    (name, by)
    for name in FAMILIES
    for by in BY
    if not (by == "memory" and name == "attention-only") and not (by == "source" and name == "falcon-rw")
]


@pytest.mark.parametrize(("name", "by"), POSSIBLE)
def test_shares_sum_to_the_models_logit(name: str, by: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    with torch.no_grad():
        logits = lm.hf(tokens[:1]).logits[0]
    found = attribution(lm, tokens[:1], 11, position=4, by=by)
    assert found.error < 1e-5
    assert sum(r.contribution for r in found.rows) == pytest.approx(float(logits[4, 11]), rel=1e-4, abs=1e-4)
    against = attribution(lm, tokens[:1], 11, against=23, by=by)
    assert against.total == pytest.approx(float(logits[-1, 11] - logits[-1, 23]), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", [n for n in WITH_MEMORIES if n != "gemma2"])
def test_a_heads_share_is_what_its_removal_takes_from_the_frozen_sum(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    before = attribution(lm, tokens[:1], 11, by="head")
    last = lm.n_layers - 1
    parts = {(r.layer, r.index): r.contribution for r in before.rows if r.label.startswith("head ")}
    # By components, attention of a layer is its heads and its bias.
    components = attribution(lm, tokens[:1], 11, by="component")
    attention = next(r.contribution for r in components.rows if r.label == f"attention {last}")
    bias = sum(r.contribution for r in before.rows if r.label == f"attention bias {last}")
    assert sum(parts[last, h] for h in range(lm.n_heads)) + bias == pytest.approx(attention, rel=1e-3, abs=1e-4)


def test_head_shares_agree_with_a_zeroed_head_where_nothing_is_nonlinear(tokens: torch.Tensor) -> None:
    lm = tiny("attention-only")  # no norms: taking a last-layer head away lowers the logit by its share
    share = next(r.contribution for r in attribution(lm, tokens[:1], 11, by="head").rows if r.label == "head L1H2")
    with_head, without = (run(lm, tokens[:1], edits=e).logits[0, -1, 11] for e in ([], [scale_head(1, 2, 0.0)]))
    assert float(with_head - without) == pytest.approx(share, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_memory_shares_of_all_positions_equal_the_attribution_of_each(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    seen = run(lm, tokens[:1], points_needed(lm, "memory"))
    everywhere = memory_contributions(lm, seen, 11)
    for position in (0, 4, 8):
        one = attribution(lm, seen, 11, position, by="memory")
        is_memory = one.kind == one.kinds.index("memory")
        torch.testing.assert_close(
            one.contribution[is_memory].view(lm.n_layers, -1), everywhere[:, position].float(), rtol=1e-4, atol=1e-6
        )


def test_edits_are_part_of_the_attribution(tokens: torch.Tensor) -> None:
    lm = tiny("llama")
    found = attribution(lm, tokens[:1], 11, by="memory", edits=(set_coefficient(1, 5, 4.0),))
    row = next(r for r in found.rows if r.label == "memory L1M5")
    plain = next(r for r in attribution(lm, tokens[:1], 11, by="memory").rows if r.label == "memory L1M5")
    assert abs(row.contribution) > 10 * abs(plain.contribution)


@pytest.mark.parametrize("point", ["resid_pre", "resid_mid", "resid_post"])
@pytest.mark.parametrize("name", list(FAMILIES))
def test_the_stream_is_the_sum_of_its_writers(name: str, point: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    try:
        seen = run(lm, tokens, {*points_needed(lm, "component"), point})
    except PointMissing:
        assert point == "resid_mid"
        return
    found = writers(lm, seen, point, 1)
    assert found.error < 1e-5 and found.labels[0] == "embedding"
    assert found.vectors.shape[0] == len(found.labels)


def test_an_unseen_writer_makes_the_attribution_refuse(tokens: torch.Tensor) -> None:
    lm = load(build("llama"))
    block = lm.hf.model.layers[1]
    handle = block.register_forward_hook(lambda _m, _a, out: out + 0.3)
    with pytest.raises(SumNotProved, match="the contributions give"):
        attribution(lm, tokens[:1], 11)
    with pytest.raises(SumNotProved, match="the sum of its parts differs from it"):
        writers(lm, run(lm, tokens, points_needed(lm, "component")), "resid_post", 1)
    handle.remove()
    assert attribution(lm, tokens[:1], 11).error < 1e-5


def test_leaving_out_the_branch_norm_would_not_add_up(tokens: torch.Tensor) -> None:
    lm = tiny("gemma2")
    seen = run(lm, tokens, ["z", "attn_out"])
    naive = torch.einsum("bphd,hdm->bpm", seen["z"][0], lm.weights.W_O[0])
    assert float((naive - seen["attn_out"][0]).norm() / seen["attn_out"][0].norm()) > 0.1


def test_memories_behind_a_gate_per_channel_contribute_what_their_removal_takes(tokens: torch.Tensor) -> None:
    """RWKV: a receptance multiplies each channel of what the memories of a position write."""
    lm = load(tiny_model("rwkv").double())
    layer = lm.n_layers - 1
    found = attribution(lm, tokens[:1], 11, position=3, by="memory")
    own = [row.contribution for row in found.rows if row.label.startswith("memory") and row.layer == layer]
    assert len(own) == lm.d_mlp and found.error < 1e-10
    seen = run(lm, tokens[:1], ("mlp_out", "resid_post"))
    u = logit_direction(lm, 11) / final_scale(lm, seen.at("resid_post", layer)[0, 3])
    for index in range(lm.d_mlp):
        without = run(lm, tokens[:1], ("mlp_out",), set_coefficient(layer, index, 0.0))
        taken = (seen.at("mlp_out", layer) - without.at("mlp_out", layer))[0, 3] @ u
        assert own[index] == pytest.approx(float(taken), rel=1e-9, abs=1e-12)
    everywhere = memory_contributions(lm, run(lm, tokens[:1], points_needed(lm, "memory")), 11)
    torch.testing.assert_close(everywhere[layer, 3].float(), torch.tensor(own), rtol=1e-5, atol=1e-8)


def test_bad_requests_are_refused(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    with pytest.raises(InvalidInput, match="not one of component, head"):
        attribution(lm, tokens[:1], 11, by="neuron")
    with pytest.raises(OutOfRange, match="position 9"):
        attribution(lm, tokens[:1], 11, position=9)
    with pytest.raises(OutOfRange, match="token 97"):
        attribution(lm, tokens[:1], 97)
    with pytest.raises(Unsupported, match="goes through InklingShortConvolution"):
        attribution(load(tiny_model("inkling_text")), tokens[:1], 11, by="memory")
    with pytest.raises((NotOneToken, InvalidInput)):
        attribution(lm, tokens[:1], " word")


def test_titles_name_the_logit_or_the_difference_of_logits() -> None:
    trace = tiny("gpt2").trace(torch.tensor([[5, 6, 7]]))
    one, two = trace.attribution(7, by="head"), trace.attribution(7, against=9, by="head")
    logits = trace.lm.run(torch.tensor([[5, 6, 7]])).logits[0, -1]
    of_one, of_two = (format_signed(float(value)) for value in (logits[7], logits[7] - logits[9]))
    assert one.to_table().title.startswith(f'Attribution of the logit of "<7>" ({of_one}) by head')
    title = two.with_effects(2).to_table().title
    assert title == (
        f'Direct and total effects on the difference of logits "<7>" − "<9>" ({of_two}), by head, ablated to zero'
    )


def test_what_a_writer_lacks_is_none() -> None:
    lm = tiny("gpt2")
    rows = attribution(lm, torch.tensor([[5, 6, 7]]), 7, by="source").rows
    start = next(row for row in rows if row.label == "embedding")
    assert (start.layer, start.index, start.source) == (None, None, None)
    head = next(row for row in rows if row.label == "head L1H2 from <5> (0)")
    assert (head.layer, head.index, head.source) == (1, 2, 0)
    ffn = next(row for row in rows if row.label == "ffn 1")
    assert (ffn.layer, ffn.index, ffn.source) == (1, None, None)


@pytest.mark.parametrize(("dtype", "n"), [(torch.float32, 2000), (torch.bfloat16, 120)])
def test_sources_add_up_where_attention_is_even(dtype: torch.dtype, n: int) -> None:
    """The largest of n equal parts is 1 / n of the whole: the error is not relative to it."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
    hf = LlamaForCausalLM(LlamaConfig(vocab_size=200, max_position_embeddings=2048, **sizes)).eval().to(dtype)
    lm, ids = load(hf), torch.randint(0, 200, (1, n))
    found = lm.trace(ids).attribution(5, by="source")
    by_head = lm.trace(ids).attribution(5, by="head")
    for head in range(4):
        parts = sum(row.contribution for row in found.rows if (row.layer, row.index) == (3, head))
        whole = next(row.contribution for row in by_head.rows if (row.layer, row.index) == (3, head))
        assert parts == pytest.approx(whole, abs=SUM_TOLERANCE[str(dtype).removeprefix("torch.")] * abs(found.logit))


def test_sources_whose_pattern_is_wrong_are_refused(tokens: torch.Tensor) -> None:
    lm = tiny("llama")
    seen = run(lm, tokens[:1], points_needed(lm, "source"))
    assert attribution(lm, seen, 11, by="source").error < 1e-5
    seen["pattern"][1, 0, 2] *= 1.01
    with pytest.raises(SumNotProved, match="the sources of layer 1"):
        attribution(lm, seen, 11, by="source")


@pytest.mark.parametrize("factor", [0.0, -0.5, 3.0])
def test_sources_of_a_head_that_an_edit_scales_add_up_to_it(tokens: torch.Tensor, factor: float) -> None:
    lm = tiny("llama")
    traced = lm.trace(tokens[:1], edits=[scale_head(1, 2, factor)])
    found, by_head = traced.attribution(11, by="source"), traced.attribution(11, by="head")
    for head in range(lm.n_heads):
        parts = sum(row.contribution for row in found.rows if (row.layer, row.index) == (1, head))
        whole = next(row.contribution for row in by_head.rows if (row.layer, row.index) == (1, head))
        assert parts == pytest.approx(whole, rel=1e-4, abs=1e-5)
        assert head != 2 or factor or whole == 0


@pytest.mark.parametrize("name", [n for n, by in POSSIBLE if by == "source"])
def test_sources_from_one_row_are_those_from_whole_patterns(name: str, tokens: torch.Tensor) -> None:
    lm, position = tiny(name), 4
    whole = attribution(lm, run(lm, tokens[:1], points_needed(lm, "source")), 11, position, by="source")
    for found in (
        attribution(lm, tokens[:1], 11, position, by="source"),
        lm.trace(tokens[:1]).attribution(11, position, by="source"),
    ):
        torch.testing.assert_close(found.contribution, whole.contribution, rtol=1e-4, atol=1e-5)
        assert torch.equal(found.source, whole.source) and found.total == pytest.approx(whole.total, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("model_type", "kinds"),
    [("mamba", ["component"]), ("glm4_moe", ["component", "head", "memory"]), ("rwkv", ["component", "memory"])],
)
def test_the_kinds_of_a_model_are_those_of_its_parts(model_type: str, kinds: list[str]) -> None:
    lm = load(tiny_model(model_type))
    assert kinds_of(lm) == kinds
    assert kinds_of(lm, [scale_ffn(0, 0.5)]) == [by for by in kinds if by != "memory"]

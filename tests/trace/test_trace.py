"""A trace against the model's logits, plain definitions of the events, and the sub-updates' own sum."""

from __future__ import annotations

import pytest
import torch

import unembed as package
from tests.conftest import tiny
from tests.families import WITH_MEMORIES
from unembed.errors import InvalidInput, OutOfRange, Unsupported
from unembed.memories.usual_coefficients import UsualCoefficients
from unembed.stream.interventions import set_coefficient
from unembed.stream.run import run
from unembed.trace import head_sources_view, pattern_view, patterns_view, prompt_heads_view, readings
from unembed.trace.memory_effects import ScoredMemories


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_memory_effects_are_the_memories_rows_of_the_attribution(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace = lm.trace(tokens[0])
    question = trace.question(position=3)
    found = trace.memory_effects(question, 3, top=lm.n_layers * lm.d_mlp)
    attribution = trace.attribution(question.token, 3, question.against, by="memory")
    expected = {(row.layer, row.index): row.contribution for row in attribution.rows if row.index is not None}
    assert [(row.layer, row.index) for row in found.rows] == sorted(
        [key for key, effect in expected.items() if trace.at(3).at("coefficients", key[0])[0, 0, key[1]] != 0],
        key=lambda key: -abs(expected[key]),
    )
    for row in found.rows:
        assert row.score == pytest.approx(expected[row.layer, row.index], rel=1e-4, abs=1e-7)
    assert found.total == pytest.approx(sum(expected.values()), rel=1e-4, abs=1e-6)
    assert found.others == 0 and found.others_effect == pytest.approx(0, abs=1e-5)


def test_silent_memories_are_in_no_list_and_those_always_on_are_apart(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    silenced = lm.trace(tokens[0], edits=[set_coefficient(1, 5, to=0.0), set_coefficient(0, 3, to=9.0)])
    n = lm.n_layers * lm.d_mlp
    usual = UsualCoefficients({0: torch.arange(lm.d_mlp) == 3, 1: torch.zeros(lm.d_mlp, dtype=torch.bool)}, {})
    found = ScoredMemories(lm, silenced.at(-1), silenced.question(), [0, 1], usual).largest(n)
    assert [(row.layer, row.index) for row in found.always_on] == [(0, 3)]
    assert not {(1, 5), (0, 3)} & {(row.layer, row.index) for row in found.rows}
    best = max(found.rows, key=lambda row: row.score or 0)
    assert found.most is not None and found.most[:2] == (best.layer, best.index)


def test_edits_change_the_trace_and_are_in_its_provenance(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    edited = lm.trace(tokens[0], edits=[set_coefficient(0, 3, 5.0)])
    assert not torch.equal(edited.logits(), lm.trace(tokens[0]).logits())
    assert float(edited.at(0).at("coefficients", 0)[0, 0, 3]) == 5.0
    assert edited.provenance.notes["edits"][0]["index"] == 3


def test_bad_requests_are_refused(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    with pytest.raises(InvalidInput, match="2 prompts"):
        lm.trace(tokens)
    trace = lm.trace(tokens[0])
    with pytest.raises(OutOfRange, match="position -10"):
        trace.sub_updates(0, position=-10)
    with pytest.raises(OutOfRange, match="layer 2"):
        trace.sub_updates(2)
    with pytest.raises(Unsupported, match="no layer of the model has an FFN"):
        tiny("attention-only").trace(tokens[0]).sub_updates(0)
    with pytest.raises(Unsupported, match="no layer of the model has an FFN"):
        tiny("attention-only").trace(tokens[0]).events()


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_heads_contributions_equal_the_attribution_and_add_up_to_the_attention(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace = lm.trace(tokens[0])
    rows = trace.attribution(11, 4, by="head").rows
    shares = {r.index: r.contribution for r in rows if r.label.startswith("head L1H")}
    heads = trace.head_updates(1, 4, 11)
    led = trace.head_updates(1, 4, 11, 7)
    for head, lead, other in zip(heads, led, trace.head_updates(1, 4, 7), strict=True):
        assert lead.score == pytest.approx(head.score - other.score, abs=1e-5)
    assert [h.norm for h in heads] == sorted((h.norm for h in heads), reverse=True)
    for head in heads:
        assert head.score == pytest.approx(shares[head.index], rel=1e-3, abs=1e-5)
    assert sum(h.share for h in heads) == pytest.approx(1)
    assert trace.head_updates(1, 4, 11, heads=[2]) == [h for h in heads if h.index == 2]


def test_a_trace_and_its_readings_show_what_they_hold(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2-relu")
    trace = lm.trace(tokens[0])
    assert f"Trace of {len(trace)} tokens" in repr(trace) and "predicts" in repr(trace)
    table = trace.to_table()
    assert table["rank"][-1] == 1 and len(table) == lm.n_layers
    readings = trace.readings(top=3)
    long = readings.to_table()
    assert len(long) == lm.n_layers * len(trace) * 3
    row = long[(1 * len(trace) + 2) * 3 + 1]
    assert (row["layer"], row["position"], row["rank"]) == (1, 2, 2)
    assert row["id"] == int(readings.ids[1, 2, 1]) and row["logit"] == float(readings.logits[1, 2, 1])
    assert len(repr(readings)) < 2000
    attribution = trace.attribution(11, by="memory")
    shown = attribution.to_table()
    assert sum(shown["contribution"]) == pytest.approx(attribution.total, rel=1e-5)
    assert shown["source"][0] is None and shown.provenance.basis == "frozen"
    assert abs(shown["contribution"][0]) == max(abs(c) for c in shown["contribution"])


def test_what_the_model_predicts_or_has_as_runner_up_is_listed_whatever_it_is() -> None:
    lm = package.load()
    trace = lm.trace("法国的首都是")
    assert trace.hidden is not None
    best = run(lm, trace.tokens[None]).logits[0].topk(2).indices
    assert bool(lm.unlisted[best].any()) and not bool(trace.hidden[best].any())
    for position in range(len(trace)):
        question = trace.question(position=position)
        assert [question.token, question.against] == best[position].tolist()
        assert best[position].tolist() == trace.readings(position=position).ids[-1, 0, :2].tolist()


def test_showing_unlearned_tokens_runs_the_model_no_second_time(tokens: torch.Tensor) -> None:
    trace = package.load().trace("The garden was full of")
    shown = trace.showing(unlearned=True)
    assert shown.run is trace.run and trace.showing(unlearned=False) is trace
    hidden = trace.lm.unlisted[trace.readings(top=50).ids].any()
    assert not hidden and trace.lm.unlisted[shown.readings("resid_pre", top=50, basis="final").ids].any()
    assert shown.provenance.notes == {"show_unlearned": True}
    kinds = {trace.lm.unlisted[event.token].item() for event in trace.events()}
    assert kinds == {False}


def test_a_trace_stores_what_its_shape_says_whatever_was_asked(wren_trace) -> None:
    """The stream, keys and values at every position; logits, updates, coefficients and patterns at three positions."""
    trace, lm = wren_trace, wren_trace.lm
    n = len(trace)
    question = trace.question()
    patterns_view(trace)
    prompt_heads_view(trace, question)
    for position in range(n - 5, n):
        head_sources_view(trace, 3, 1, trace.question(position=position), position)
        pattern_view(trace, position % lm.n_layers, 1)
    # The stream before and after attention, and after the last layer; values; queries, keys and values, which gpt2
    # computes together; the logits after the last token.
    everywhere = lm.d_vocab + n * (lm.d_model + lm.n_layers * (2 * lm.d_model + lm.d_model + 3 * lm.d_model))
    # The logits, both updates, z, the coefficients and each head's row of attention.
    at_one = lm.d_vocab + lm.d_model + lm.n_layers * (3 * lm.d_model + lm.d_mlp + lm.n_heads * n)
    # Of the layer whose heads were shown last: its patterns, the values, its input, and the embeddings of positions.
    one_layer = n * (lm.n_heads * n + 3 * lm.d_model)
    assert trace.nbytes == 4 * (everywhere + 3 * at_one + one_layer)


def test_a_further_run_repeats_the_first_one_bit_for_bit(wren_trace) -> None:
    trace, points = wren_trace, ("resid_pre", "attn_out", "mlp_out", "z", "coefficients", "pattern", "values")
    found = trace.at(5, points)
    alone = run(trace.lm, trace.tokens[None], points, row=5, row_of=["pattern"]).at_position(5)
    assert torch.equal(found.logits, alone.logits)
    for point in points:
        assert torch.equal(found[point], alone[point])


def test_the_logits_of_a_position_stay_when_more_is_captured_there(tokens: torch.Tensor) -> None:
    lm = tiny("llama")
    trace = lm.trace(tokens[0])
    trace._leaves_kernels = False  # as in models whose patterns need other attention kernels
    expected = run(lm, tokens[:1]).logits[0]
    for points in (("z",), ("pattern",), ("pattern", "mlp_in"), ("mlp_in",)):
        for position in (2, len(trace) - 1):
            assert torch.equal(trace.at(position, points).logits[0, 0], expected[position])


@pytest.fixture(scope="module")
def wren_trace():
    lm = package.load()
    return lm.trace(lm.encode("The war lasted from 1861 to 1865 , and the king of the land left it . ")[0].repeat(6))


def test_what_is_known_of_a_position_is_kept_when_more_is_asked_for(
    tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = tiny("llama")
    trace = lm.trace(tokens[0])
    passes: list[object] = []
    monkeypatch.setattr(readings, "run", lambda *a, **k: passes.append(a) or run(*a, **k))
    for points in (("z",), ("mlp_in",), ("z",), ("mlp_in", "z")):
        found = trace.at(2, points)
        for point in points:
            whole = run(lm, tokens[:1], [point])[point][:, :, [2]]
            torch.testing.assert_close(found[point], whole, rtol=1e-5, atol=1e-6)
    assert len(passes) == 2, "the position's own pass, and one for mlp_in"
    trace.ranks_among([[3], [3]], ("resid_mid", "resid_post"), 1, 0)
    assert len(passes) == 2, "the stream is stored at every position"


def test_only_the_stream_is_kept_at_every_position(tokens: torch.Tensor) -> None:
    trace = tiny("llama").trace(tokens[0])
    with pytest.raises(InvalidInput, match="it can be read only at resid_pre, resid_mid, resid_post"):
        trace.stream("mlp_out")  # type: ignore[arg-type]


def test_one_layer_at_every_position_is_read_once(tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny("llama")
    trace, passes = lm.trace(tokens[0]), list[object]()
    before = trace.nbytes
    monkeypatch.setattr(readings, "run", lambda *a, **k: passes.append(a) or run(*a, **k))
    whole = run(lm, tokens[:1], "coefficients").at("coefficients", 1)
    for layers in ([1], [1], [0, 1], [1]):
        assert torch.equal(trace.everywhere("coefficients", layers).at("coefficients", 1), whole)
    assert len(passes) == 2, "several layers at once are not stored, and do not replace the one that is"
    assert trace.nbytes == before + whole.nbytes

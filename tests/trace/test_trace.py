"""A trace against the model's logits, plain definitions of the events, and the sub-updates' own sum."""

from __future__ import annotations

import pytest
import torch

import unembed as package
from tests.conftest import tiny
from tests.families import WITH_MEMORIES
from unembed.errors import InvalidInput, OutOfRange, Unsupported
from unembed.lens import read
from unembed.memories.sub_updates import token_scores
from unembed.stream.interventions import set_coefficient
from unembed.stream.run import run
from unembed.trace.memory_effects import ScoredMemories
from unembed.trace.question import Question
from unembed.trace.usual_coefficients import UsualCoefficients, usual_coefficients


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_readings_are_those_of_the_captured_streams(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace = lm.trace(tokens[0])
    last = trace.readings("resid_post", top=5)
    with torch.no_grad():
        logits = lm.hf(tokens[:1]).logits[0]
    assert torch.equal(last.ids[-1, :, 0], logits.argmax(-1))
    assert torch.equal(trace.prediction, logits.argmax(-1))
    torch.testing.assert_close(last.probabilities[-1], logits.softmax(-1).gather(1, last.ids[-1]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(trace.logits(), logits[-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_what_enters_a_layer_is_read_like_any_other_stream(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace = lm.trace(tokens[0], show_unlearned=True)
    x = run(lm, tokens[:1], ["resid_pre"])["resid_pre"][:, 0]
    plain = read(lm, x, 10, track=trace.prediction[:, None].expand(lm.n_layers, -1, 1))
    found = trace.readings("resid_pre")
    assert torch.equal(found.ids, plain.ids)
    torch.testing.assert_close(found.probabilities, plain.probabilities, rtol=1e-4, atol=1e-6)
    assert torch.equal(trace.prediction_ranks("resid_pre"), plain.tracked_ranks[..., 0])
    for point in ("resid_pre", "resid_post"):
        answer = int(trace.prediction[4])
        assert torch.equal(trace.ranks_of(answer, point, position=4), trace.ranks_of(answer, point)[:, 4:5])


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_sub_updates_of_all_layers_are_those_of_each(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace, layers = lm.trace(tokens[0], show_unlearned=True), range(lm.n_layers)
    for n, rows in zip(layers, trace.sub_updates_of(layers, 3, 4, 11), strict=True):
        assert [r.index for r in rows] == [r.index for r in trace.sub_updates(n, 3, 4, 11)]
        for row in rows:
            assert row.top_tokens == lm.values.top_tokens(n, row.index, 10, show_unlearned=True)
            assert row.bottom_tokens == lm.values.top_tokens(n, row.index, 10, bottom=True, show_unlearned=True)


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_scores_of_all_sub_updates_add_up_to_the_updates_score(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    seen = run(lm, tokens[:1], ["coefficients", "mlp_out", "resid_post"])
    for layer in range(lm.n_layers):
        site = lm.feed_forward(layer)
        raw = token_scores(lm, seen, layer, 4, 11, basis="raw").sum()
        bias = torch.zeros(lm.d_model)
        update = seen.at("coefficients", layer)[0, 4] @ lm.weights.W_out[layer]
        if lm.weights.b_out[layer] is not None:
            bias = bias + lm.weights.b_out[layer]
        if site.branch_norm is not None:
            scale = site.branch_norm.scale(update + bias)
            bias = site.branch_norm.frozen(bias, scale) + (
                0 if site.branch_norm.bias is None else site.branch_norm.bias
            )
        whole = seen.at("mlp_out", layer)[0, 4] @ lm.weights.W_U[:, 11]
        part = (bias * site.multiplier) @ lm.weights.W_U[:, 11]
        torch.testing.assert_close(raw + part, whole, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_memory_effects_are_the_memories_rows_of_the_attribution(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace = lm.trace(tokens[0])
    question = trace.question(position=3)
    found = trace.memory_effects(question, 3, top=lm.n_layers * lm.d_mlp)
    attribution = trace.attribution(question.token, 3, question.against, by="memory")
    expected = {(row.layer, row.index): row.contribution for row in attribution.rows if row.index is not None}
    assert [(row.layer, row.index) for row in found.rows] == sorted(
        [key for key, effect in expected.items() if trace.run.at("coefficients", key[0])[0, 3, key[1]] != 0],
        key=lambda key: -abs(expected[key]),
    )
    for row in found.rows:
        assert row.score == pytest.approx(expected[row.layer, row.index], rel=1e-4, abs=1e-7)
    assert found.total == pytest.approx(sum(expected.values()), rel=1e-4, abs=1e-6)
    assert found.others == 0 and found.others_effect == pytest.approx(0, abs=1e-5)


def test_the_question_is_the_prediction_against_the_most_likely_other_token(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    trace = lm.trace(tokens[0], show_unlearned=True)
    first, second, third = trace.logits(4).topk(3).indices.tolist()
    assert trace.question(position=4) == Question(first, second)
    assert trace.question(second, position=4) == Question(second, first)
    assert trace.question(position=4, against=third) == Question(first, third)
    assert trace.question(position=4, alone=True) == Question(first, None)
    with pytest.raises(InvalidInput, match="against itself"):
        trace.question(third, third)
    with pytest.raises(InvalidInput, match="against itself"):
        trace.attribution(third, against=third)


def test_silent_memories_are_in_no_list_and_those_always_on_are_apart(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    silenced = lm.trace(tokens[0], edits=[set_coefficient(1, 5, to=0.0), set_coefficient(0, 3, to=9.0)])
    n = lm.n_layers * lm.d_mlp
    usual = UsualCoefficients({0: torch.arange(lm.d_mlp) == 3, 1: torch.zeros(lm.d_mlp, dtype=torch.bool)}, {})
    found = ScoredMemories(lm, silenced.run, silenced.question(), len(silenced) - 1, [0, 1], usual).largest(n)
    assert [(row.layer, row.index) for row in found.always_on] == [(0, 3)]
    assert not {(1, 5), (0, 3)} & {(row.layer, row.index) for row in found.rows}
    best = max(found.rows, key=lambda row: row.score or 0)
    assert found.most is not None and found.most[:2] == (best.layer, best.index)


def test_dominant_sub_updates_are_sorted_by_contribution(tokens: torch.Tensor) -> None:
    lm = tiny("llama")
    trace = lm.trace(tokens[0])
    found = trace.sub_updates(1, position=3, top=6, token=11)
    m = trace.run.at("coefficients", 1)[0, 3]
    sizes = m.abs() * lm.weights.W_out[1].norm(dim=-1)
    expected = sizes.argsort(descending=True)[:6].tolist()
    assert [s.index for s in found] == expected
    assert [s.coefficient for s in found] == pytest.approx([float(m[i]) for i in expected])
    assert sum(s.share for s in trace.sub_updates(1, 3, top=lm.d_mlp)) == pytest.approx(1.0, abs=1e-5)
    for sub in found:
        ids = (lm.weights.W_out[1][sub.index] @ lm.weights.W_U).argsort(descending=True)
        assert sub.top_tokens[:3] == lm.token_strings(ids[:3])
        assert sub.bottom_tokens[:3] == lm.token_strings(ids.flip(0)[:3])
        assert sub.promoted == (sub.top_tokens if sub.coefficient >= 0 else sub.bottom_tokens)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gpt_neox", "mixtral"])
def test_events_follow_their_definition_read_off_full_rankings(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace = lm.trace(tokens[0])
    before = "resid_pre" if lm.structure.blocks[0].parallel else "resid_mid"
    seen = run(lm, tokens[:1], ["resid_pre", before, "resid_post"])
    structure = lm.structure
    with torch.no_grad():
        order = {
            p: structure.capped(structure.head(structure.final_norm.module(seen[p][:, 0]))).argsort(
                dim=-1, descending=True
            )
            for p in ("resid_pre", before, "resid_post")
        }
    for position in range(9):
        final = int(order["resid_post"][-1, position, 0])
        tops = [int(order["resid_post"][n, position, 0]) for n in range(lm.n_layers)]
        settled = next(n for n in range(lm.n_layers) if all(t == final for t in tops[n:]))
        events = {e.kind: e for e in trace.events(position)}
        event = events["saturation"]
        entering, rank = (order[p][settled, position].tolist().index(final) + 1 for p in ("resid_pre", before))
        cause = "ffn" if rank > 1 else "attention" if entering > 1 else "embedding"
        assert (event.layer, event.token, event.cause) == (settled, final, cause)
        assert (event.rank_before, event.rank_after) == (rank if cause == "ffn" else entering, 1)
        assert event.rank_before > 1 or settled == 0
        fell = [
            order["resid_post"][n, position].tolist().index(int(order[before][n, position, 0])) + 1
            for n in range(lm.n_layers)
        ]
        if max(fell) == 1:
            assert "elimination" not in events
        else:
            assert (events["elimination"].layer, events["elimination"].rank_after) == (fell.index(max(fell)), max(fell))


def test_edits_change_the_trace_and_are_in_its_provenance(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    edited = lm.trace(tokens[0], edits=[set_coefficient(0, 3, 5.0)])
    assert not torch.equal(edited.logits(), lm.trace(tokens[0]).logits())
    assert float(edited.run.at("coefficients", 0)[0, 0, 3]) == 5.0
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
    with pytest.raises(Unsupported, match="attention-only"):
        tiny("attention-only").trace(tokens[0]).sub_updates(0)
    with pytest.raises(Unsupported, match="attention-only"):
        tiny("attention-only").trace(tokens[0]).events()


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_reading_by_layers_gives_what_reading_at_once_gives(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    at_once, by_layers = lm.trace(tokens[0]), lm.trace(tokens[0])
    seen: dict[str, list[int]] = {}
    for layers, point, found in by_layers.by_layers(vectors=1):
        whole = at_once.readings(point)
        assert torch.equal(found.ids, whole.ids[layers.start : layers.stop])
        ranks = at_once.prediction_ranks(point)[layers.start : layers.stop]
        assert torch.equal(found.tracked_ranks[..., 0], ranks)
        seen.setdefault(point, []).extend(layers)
    assert next(iter(seen)) == "resid_post" and len(seen) == 2
    assert all(layers == list(range(lm.n_layers)) for layers in seen.values())
    assert by_layers.events() == at_once.events()
    assert not list(by_layers.by_layers()), "what has been read is read once more"


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_the_spread_is_that_of_the_whole_distributions(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace = lm.trace(tokens[0], show_unlearned=True)
    entropy, divergence = trace.entropy_and_kl()
    probabilities = trace.readings(top=lm.d_vocab)
    p = torch.zeros(*probabilities.ids.shape, dtype=torch.float64)
    p.scatter_(-1, probabilities.ids, probabilities.probabilities.double())
    torch.testing.assert_close(entropy.double(), -(p * p.log()).sum(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(divergence.double(), (p * (p.log() - p[-1].log())).sum(-1), rtol=1e-3, atol=1e-5)
    assert float(divergence[-1].max()) < 1e-5 < float(divergence[0].max())


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_ranks_and_probabilities_are_those_among_all_tokens(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace = lm.trace(tokens[0])
    with torch.no_grad():
        p = lm.hf(tokens[:1]).logits[0].softmax(-1)
    for token in (11, int(trace.prediction[3])):
        for position in (None, 3):
            ranks, probabilities = trace.ranks_and_probabilities(token, position=position)
            at = slice(None) if position is None else [position]
            assert torch.equal(ranks[-1], (p[at] > p[at, token : token + 1]).sum(-1) + 1)
            torch.testing.assert_close(probabilities[-1], p[at, token], rtol=1e-4, atol=1e-6)
    listed = [5, 11, int(trace.prediction[3])]
    points = ["resid_post", "resid_pre"]
    among = trace.ranks_among([listed, listed[::-1]], points, 1, 3)
    for got, ids, point in zip(among.tolist(), (listed, listed[::-1]), points, strict=True):
        assert got == [int(trace.ranks_of(t, point, position=3)[1, 0]) for t in ids]


@pytest.mark.parametrize("name", ["gpt2", "llama", "gptj"])
def test_rank_changes_are_all_the_updates_that_halve_or_double_a_rank(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace = lm.trace(tokens[0])
    found = {(m.layer, m.position, m.cause): (m.kind, m.rank_before, m.rank_after) for m in trace.rank_changes(11)}
    expected = {}
    if not trace.parallel:
        pre, mid, post = (trace.ranks_of(11, p) for p in ("resid_pre", "resid_mid", "resid_post"))
        for cause, before, after in (("attention", pre, mid), ("ffn", mid, post)):
            for n in range(lm.n_layers):
                for p in range(len(trace)):
                    a, b = int(before[n, p]), int(after[n, p])
                    if a >= 2 * b or b >= 2 * a:
                        expected[n, p, cause] = ("rise" if b < a else "fall", a, b)
    assert found == expected and bool(found) is not trace.parallel
    assert trace.rank_changes(11, 4) == [m for m in trace.rank_changes(11) if m.position == 4]
    assert trace.rank_changes(position=4) == trace.rank_changes(int(trace.prediction[4]), 4)


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


def test_a_memory_that_fires_on_every_token_counts_as_always_on() -> None:
    lm = package.load()
    assert usual_coefficients(lm, None).always_on[4][571]
    firing = sum(int(on.sum()) for on in usual_coefficients(lm, None).always_on.values())
    assert 0 < firing < 0.01 * lm.n_layers * lm.d_mlp


def test_showing_unlearned_tokens_runs_the_model_no_second_time(tokens: torch.Tensor) -> None:
    trace = package.load().trace("The garden was full of")
    shown = trace.showing(unlearned=True)
    assert shown.run is trace.run and trace.showing(unlearned=False) is trace
    hidden = trace.lm.unlisted[trace.readings(top=50).ids].any()
    assert not hidden and trace.lm.unlisted[shown.readings("resid_pre", top=50).ids].any()
    assert shown.provenance.notes == {"show_unlearned": True}
    kinds = {trace.lm.unlisted[event.token].item() for event in trace.events()}
    assert kinds == {False}

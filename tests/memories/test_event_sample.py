"""Events over a corpus sample against the trace of each prefix, and the numbers made of them by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import unembed
from tests.cli.conftest import save_model
from tests.conftest import tiny
from tests.models.architectures.test_wikilm import wikilm
from tests.models.decoder_classes import tiny_model
from tests.sweeps.recorder import lettered, texts
from unembed.corpus import Segment
from unembed.errors import InvalidInput, Unsupported
from unembed.jacobian import JacobianLens, fit_lens, reading_by
from unembed.language_model import LanguageModel
from unembed.memories.event_sample import EventRecorder, EventSample, event_sample, record_events
from unembed.memories.event_scores import (
    counted_events,
    event_scores,
    saturation_shares,
)
from unembed.memories.sub_updates import dominant, token_scores
from unembed.names import StreamPoint
from unembed.results import Provenance
from unembed.stream.decomposition import memory_points
from unembed.trace.trace import Trace

TEXTS = [f"The first month of the year is {w} a b c" for w in ("January", "w66", "w70", "w71", "w80")]


def prefixes(n: int = 6) -> list[Segment]:
    g = torch.Generator().manual_seed(3)
    rows = [torch.randint(3, 60, (2 + i,), generator=g) for i in range(n)]
    return [Segment(i, 0, i, 100 * i, 0, 0, row[:-1], int(row[-1])) for i, row in enumerate(rows)]


def sampled(lm, seed: int = 0, tokens: int = 12) -> EventSample:
    recorder = EventRecorder(seed)
    recorder.start(lm)
    return record_events(lm, prefixes(), recorder, tokens)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "olmo2", "gptj", "qwen2_moe", "rwkv"])
def test_every_number_is_the_traces(family):
    lm = unembed.load(tiny_model("rwkv").double()) if family == "rwkv" else tiny(family, torch.float64)
    sample = sampled(lm)
    for i, segment in enumerate(prefixes()):
        trace = Trace(lm, segment.tokens)
        whole = lm.run(segment.tokens, ("resid_post", *memory_points(lm)))
        assert sample.final[i] == trace.prediction[-1]
        events = [e for n, e in sample.events() if n == i]
        assert events == trace.events(-1)
        assert sample.next_token[i] == segment.next_token
        ends = trace.run["resid_post"][:, 0, -1]
        np.testing.assert_allclose(sample.stream_length[:, i], ends.norm(dim=-1).numpy(force=True), rtol=1e-6)
        column = len(segment) - 1
        for n in range(lm.n_layers):
            m, W_out = whole.at("coefficients", n)[0, -1], lm.weights.W_out[n]
            largest, sizes = dominant(m, W_out, 10), m.abs() * W_out.norm(dim=-1)
            assert sample.dominant[n, i].tolist() == largest.tolist()
            assert sample.contribution[n, i] == pytest.approx(float(sizes[largest].sum() / sizes.sum()), rel=1e-6)
            for t, token in enumerate((sample.final[i], sample.candidates[n, i])):
                for b, basis in enumerate(("raw", "frozen")):
                    every = token_scores(lm, whole, n, column, int(token), basis)
                    expected = every[torch.from_numpy(sample.dominant[n, i])]
                    np.testing.assert_allclose(sample.scores[n, i, :, t, b], expected.detach(), rtol=1e-5, atol=1e-9)


def by_lens(family: str) -> tuple[LanguageModel, JacobianLens, EventSample]:
    lm = lettered(family)
    lens = fit_lens(lm, texts(40), 3, 12)
    recorder = EventRecorder(0, basis="jacobian")
    recorder.start(lm)
    with reading_by(lm, lens):
        return lm, lens, record_events(lm, prefixes(), recorder, 12)


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "gptj"])
def test_by_the_fitted_lens_ranks_are_those_that_it_reads(family: str) -> None:
    lm, lens, sample = by_lens(family)
    assert sample.provenance.basis == "jacobian"
    points: list[StreamPoint] = ["resid_pre" if block.parallel else "resid_mid" for block in lm.structure.blocks]
    for i, segment in enumerate(prefixes()):
        run = lm.run(segment.tokens[None], sorted({*points, "resid_post"}))
        assert sample.final[i] == int(run.logits[0, -1].argmax())
        for n, point in enumerate(points):
            start = lens.read(run.at(point, n)[0, -1], n, point)
            end = lens.read(run.at("resid_post", n)[0, -1], n)
            candidate, final = int(start.argmax()), int(sample.final[i])
            assert sample.candidates[n, i] == candidate
            for found, token in ((sample.candidates_after, candidate), (sample.final_after, final)):
                assert found[n, i] == int((end > end[token]).sum()) + 1


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_by_the_fitted_lens_a_score_is_what_the_carried_sub_update_adds(family: str) -> None:
    lm, lens, sample = by_lens(family)
    for n in range(lm.n_layers):
        values = lm.weights.W_out[n][torch.from_numpy(sample.dominant[n, 2])] @ lens.jacobian(n)
        expected = torch.from_numpy(sample.coefficients[n, 2]) * (values @ lm.weights.W_U[:, int(sample.final[2])])
        np.testing.assert_allclose(sample.scores[n, 2, :, 0, 0], expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "olmo2", "qwen2_moe"])
def test_the_change_of_a_candidate_is_what_the_whole_update_adds_to_its_logit(family):
    lm = tiny(family, torch.float64)
    sample = sampled(lm)
    for i, segment in enumerate(prefixes()):
        run = lm.run(segment.tokens[None], ("resid_mid", "resid_post"))
        for n in range(lm.n_layers):
            update = (run.at("resid_post", n) - run.at("resid_mid", n))[0, -1]
            expected = float(update @ lm.weights.W_U[:, int(sample.candidates[n, i])])
            assert sample.candidate_change[n, i] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_random_sub_updates_of_experts_are_of_experts_that_the_router_chose():
    lm = tiny("mixtral", torch.float64)
    sample = sampled(lm)
    assert not (sample.random_scores == 0).any() and (sample.random_contribution > 0).all()


def test_batches_merge_to_the_same_sample_and_the_seed_moves_only_random_ones():
    lm = tiny("gpt2")
    one, other = sampled(lm, tokens=4), sampled(lm, tokens=1000)
    for name in ("segment", "final", "final_embedded", "final_before", "final_after", "candidates", "dominant"):
        assert (getattr(one, name) == getattr(other, name)).all()
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
    seeded = sampled(lm, seed=5, tokens=4)
    assert (seeded.scores == one.scores).all()
    assert not (seeded.random_scores == one.random_scores).all()
    parts = []
    for half in (prefixes()[:3], prefixes()[3:]):
        recorder = EventRecorder(0)
        recorder.start(lm)
        record_events(lm, half, recorder)
        parts.append(recorder)
    parts[1].merge(parts[0])
    assert (parts[1].result().segment == one.segment).all()


def hand_made() -> EventSample:
    """Three layers, three examples; the last candidate never falls."""
    after = np.array([[1, 4, 1], [3, 2, 1], [1, 1, 1]])
    before = np.array([[2, 5, 3], [1, 3, 1], [4, 1, 1]])
    fallen = np.array([[1, 6, 1], [8, 3, 1], [8, 1, 1]])
    scores = np.arange(3 * 3 * 10 * 2 * 2, dtype=float).reshape(3, 3, 10, 2, 2)
    n = np.arange(3)
    return EventSample(
        n, n + 1, n, n, n / 3, before[0], before, after, fallen * 0 + 9, fallen, 1.0 - fallen,
        scores[..., 0, 0].astype(int), scores[..., 0, 0], scores[..., 0, 0, 0] / 900, scores[..., 0, 0, 0] / 9000,
        scores, -scores, n[:, None] + np.ones((3, 3)), n[:, None] + np.ones((3, 3)), n + 2.0, np.zeros(3, bool), 0,
        Provenance("hand-made", None, "none"),
    )  # fmt: skip


def test_events_of_hand_made_ranks():
    sample = hand_made()
    assert sample.saturation.tolist() == [2, 2, 0]
    assert sample.by_ffn().tolist() == [True, False, True]
    layer, rank = sample.elimination
    assert (layer.tolist(), rank.tolist()) == ([1, 0, 0], [8, 6, 1])
    assert [(i, e.kind, e.layer, e.cause, e.rank_before) for i, e in sample.events()] == [
        (0, "saturation", 2, "ffn", 4),
        (0, "elimination", 1, "ffn", 1),
        (1, "saturation", 2, "attention", 2),
        (1, "elimination", 0, "ffn", 1),
        (2, "saturation", 0, "ffn", 3),
    ]
    assert saturation_shares(sample) == pytest.approx([1 / 3, 0, 2 / 3])
    rows = list(sample.to_table().rows())
    assert [row["saturation_layer"] for row in rows] == [2, 2, 0] and [row["eliminated_rank"] for row in rows] == [
        8,
        6,
        1,
    ]
    assert [a.tolist() for a in counted_events(sample, "saturation")] == [[0], [2]]
    assert [a.tolist() for a in counted_events(sample, "elimination")] == [[1, 0], [0, 1]]


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory):
    return unembed.load(save_model(tmp_path_factory.mktemp("events") / "tiny"))


def test_a_sample_of_events_has_the_chosen_size_and_bad_input_is_refused(lm):
    sample = event_sample(lm, TEXTS, 4)
    assert len(sample) == 4
    assert (sample.final_after[-1] == 1).all()
    with pytest.raises(InvalidInput, match="at least 1"):
        event_sample(lm, TEXTS, 0)
    with pytest.raises(Unsupported, match="memories"):
        event_sample(unembed.load(tiny_model("inkling_text")), TEXTS, 4)


@torch.no_grad()
def test_an_adaptive_softmax_scores_by_the_change_of_its_log_probabilities():
    lm = unembed.load(wikilm(torch.float64))
    sample = sampled(lm)
    assert sample.scores.shape[-1] == 3 and sampled(tiny("gpt2")).scores.shape[-1] == 2
    for i, segment in enumerate(prefixes()):
        run = lm.run(segment.tokens[None], capture=("resid_mid", "coefficients"))
        for n in range(lm.n_layers):
            x, m = run["resid_mid"][n, 0, -1], run["coefficients"][n, 0, -1]
            for t, word in enumerate((sample.final[i], sample.candidates[n, i])):
                for j, memory in enumerate(sample.dominant[n, i]):
                    moved = x + m[memory] * lm.weights.W_out[n][memory]
                    expected = lm.hf.lm_head(moved)[word] - lm.hf.lm_head(x)[word]
                    assert sample.scores[n, i, j, t, 2] == pytest.approx(float(expected), rel=1e-8, abs=1e-12)
    assert np.abs(event_scores(sample, "elimination", basis="adaptive")).max() > 1e-3
    with pytest.raises(InvalidInput, match="raw, frozen"):
        event_scores(sampled(tiny("gpt2")), "elimination", basis="adaptive")

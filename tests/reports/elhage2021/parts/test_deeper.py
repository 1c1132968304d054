"""The questions for deeper models, recomputed by hand in float64 on small models, and on made-up heads."""

import itertools
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import unembed
from tests.families import build
from tests.reports.sample import part_of
from tests.sweeps.recorder import lettered, texts
from unembed.attention.behaviour.head_scores import KINDS
from unembed.attention.paths.term_importance import term_importance
from unembed.attention.text.skip_trigrams import CorpusCounts, random_tables
from unembed.corpus.windows import windows_of
from unembed.models.architectures.attention_only import AttentionOnlyConfig, AttentionOnlyForCausalLM
from unembed.reports.elhage2021 import QUANTITIES, STUDY
from unembed.reports.elhage2021.measurements import ByLens, HeadSkipTrigrams, Measurements
from unembed.reports.elhage2021.options import Options
from unembed.reports.elhage2021.parts import deeper, one_layer, paths
from unembed.reports.stages import Work
from unembed.stream.interventions import scale_head
from unembed.stream.run import run


@pytest.fixture
def m(tmp_path: Path) -> Measurements:
    lm = unembed.load(build("llama", torch.float64), tokenizer=lettered("llama").tokenizer)
    return Measurements(lm, unembed.open_corpus(texts(8)), Work(tmp_path, {}), Options(None, 2, 200, 3))


def with_copying(m: Measurements, scores: torch.Tensor) -> Measurements:
    """The measurements with made-up copying scores."""
    vars(m)["copying"] = SimpleNamespace(score=scores)
    return m


def test_heads_that_copy_by_weights_are_compared_with_the_others_of_their_layers(m: Measurements) -> None:
    score = torch.zeros(m.lm.n_layers, m.lm.n_heads, dtype=torch.float64)
    score[0, 1], score[1, 0], score[1, 2] = 0.9, 0.5, 0.7
    found = deeper.copying_in_runs(with_copying(m, score))
    effects = m.scores.by_sequence[KINDS.index("copying")].numpy()
    by_layer = [
        effects[:, 0, [1]].mean(1) - effects[:, 0, [0, 2, 3]].mean(1),
        effects[:, 1, [0, 2]].mean(1) - effects[:, 1, [1, 3]].mean(1),
    ]
    assert (found.copies, found.layers, found.heads) == (3, 2, score.numel())
    assert found.lead.value == pytest.approx(float(np.mean(by_layer)), rel=1e-9)
    assert found.effect.value == pytest.approx(float(effects[:, [0, 1, 1], [1, 0, 2]].mean()), rel=1e-9)
    nothing = deeper.copying_in_runs(with_copying(part_of(Measurements, **vars(m)), torch.zeros_like(score)))
    assert nothing.copies == 0 and deeper.judge_copying_in_runs(nothing).verdict == "differs"


def test_losses_without_heads_that_copy_are_those_of_runs_without_them(m: Measurements) -> None:
    score = torch.zeros(m.lm.n_layers, m.lm.n_heads, dtype=torch.float64)
    score[0, 1] = 0.9
    found = deeper.without_copying(with_copying(m, score))
    assert found is not None and found.heads == ((0, 1),)
    ((layer, other),) = found.others
    assert layer == 0 and other != 1
    window = m.loss_in_context.window
    leads = {head: list[float]() for head in (1, other)}
    rows = [s.tokens for s in windows_of(m.corpus, window, overlap=0).segments(m.lm) if len(s) == window]
    for tokens in rows[: m.options.windows]:
        after = tokens[1:].long()
        repeated = torch.tensor([int(t) in tokens[: i + 1].tolist() for i, t in enumerate(after)])
        before = run(m.lm, tokens[None]).logits[0, :-1].log_softmax(-1)
        for head, rises in leads.items():
            without = run(m.lm, tokens[None], edits=[scale_head(0, head, 0.0)]).logits[0, :-1].log_softmax(-1)
            rise = (before - without).gather(1, after[:, None])[:, 0]
            rises.append(float(rise[repeated].mean() - rise[~repeated].mean()))
    assert found.lead.value == pytest.approx(np.mean(leads[1]), abs=1e-5)
    assert found.beyond.value == pytest.approx(np.mean(leads[1]) - np.mean(leads[other]), abs=1e-5)


def test_all_orders_above_one_are_those_of_an_expansion_in_full(m: Measurements) -> None:
    found = paths.term_importance(m)
    every = term_importance(m.lm, m.corpus, m.lm.n_layers, max_tokens=m.options.tokens)
    assert found is not None and every.error is not None and every.error < 1e-6
    assert found.above_one == pytest.approx(float(every.reductions[1:].sum()), abs=1e-6)
    linear = deeper.linear_expansion(m)
    assert linear is not None and deeper.judge_linear_expansion(linear).verdict == "agrees"


def test_triples_of_deep_models_are_compared_by_head_with_their_shuffled_sources() -> None:
    """Four made-up heads: a triple counts where its destination occurs with and without the source."""
    more, less, never = CorpusCounts(10, 5, 100, 10), CorpusCounts(10, 1, 100, 20), CorpusCounts(0, 0, 100, 10)
    shuffled = (more, less, less, less, less)
    heads = [
        HeadSkipTrigrams(0, 0, (), (more, more, more, never), shuffled),  # 3 of 3 against 1 of 5
        HeadSkipTrigrams(1, 0, (), (more, less, more, less), shuffled),  # 2 of 4
        HeadSkipTrigrams(1, 1, (), (less, less, less, less), shuffled),  # none
        HeadSkipTrigrams(2, 0, (), (never,), shuffled),  # nothing to compare
    ]
    found = deeper.skip_trigrams(part_of(Measurements, seed=0, skip_trigrams=heads))
    assert (found.layers, found.better) == ([0, 1, 1], 2)
    assert (found.own.value, found.shuffled.value) == pytest.approx((0.5, 0.2))
    assert found.gain.value == pytest.approx(0.5 - 1.25 * 0.2) and found.gain.n == 3


def test_crossed_pairs_of_deep_models_are_those_of_dense_circuits_and_of_pairs_counted_one_by_one(
    m: Measurements,
) -> None:
    reading = m.token_reading
    assert reading is not None
    rows_of_ids = [s.tokens.tolist() for s in windows_of(m.corpus).segments(m.lm)]
    followed = Counter(pair for ids in rows_of_ids for pair in itertools.pairwise(ids))
    gains, crossed = list[int | float](), list[int]()
    for of in m.skip_trigrams:
        if not of.triples:
            continue
        x, where = reading.vectors[of.layer], m.frequent.tolist().index(of.triples[0].source)
        qk = m.circuits.qk(of.layer, of.head, 1, m.basis).dense()
        ov = m.circuits.ov(of.layer, of.head, m.basis).dense()
        scores, logits = x @ qk @ x.T, x @ ov @ (m.lm.structure.final_norm.gain[:, None] * m.lm.weights.W_U)
        attended, raised = (scores - scores.mean(1, keepdim=True))[:, where], logits[where, m.frequent]
        raised = raised - raised.mean()
        d, o = attended.argsort(descending=True)[:20], raised.argsort(descending=True)[:20]
        by_head = (attended[d].clamp_min(0)[:, None] * raised[o].clamp_min(0) > 0).numpy()
        table = np.array([[followed[i, j] for j in m.frequent[o].tolist()] for i in m.frequent[d].tolist()])
        rows, columns = (table > 0).any(1, keepdims=True), (table > 0).any(0, keepdims=True)
        crossed.append(int(((table == 0) & rows & columns & by_head).sum()))
        drawn = random_tables(m.bigrams, m.frequent[d], m.frequent[o], m.frequent, seed=m.seed)
        chance = np.mean([((other.numpy() > 0) & by_head).sum() for other in drawn])
        gains.append(((table > 0) & by_head).sum() - chance)
    found = deeper.bugs(m)
    assert found is not None and len(gains) > 3 and sum(crossed) > 0
    assert found.gain.value == pytest.approx(float(np.mean(gains)))
    assert found.crossed.value == pytest.approx(float(np.mean(crossed)))


def made_up_heads(strength: float) -> Measurements:
    """Three layers of three heads: L0H1 and L1H0 attend to the previous token, L2H0, L2H1 and L2H2 are induction."""
    previous, induces = torch.zeros(3, 3), torch.zeros(3, 3)
    previous[0, 1] = previous[1, 0] = 0.8
    induces[2] = 0.7
    ratios = {mode: torch.full((3, 3, 3, 3), 0.1, dtype=torch.float64) for mode in "qkv"}
    for mode in ratios:
        ratios[mode][2] = 0.0
    ratios["k"][0, 1, 2] += strength
    ratios["k"][1, 0, 2] += 3 * strength
    ratios["k"][0, 0, 2, 0] += 0.02
    ratios["v"][0, 1, 2] += 0.05
    lm = SimpleNamespace(attention_layers=(0, 1, 2), n_layers=3)
    return part_of(
        Measurements, lm=lm, seed=0, scores={"previous_token": previous, "induction": induces}, compositions=ratios
    )


def test_previous_token_heads_are_compared_with_the_other_heads_of_their_layers() -> None:
    found = deeper.read_by_induction_heads(made_up_heads(0.2))
    assert (found.pairs, found.first) == (6, 6)
    assert found.excess["k"].value == pytest.approx(((0.2 - 0.01 + 0.6) + 2 * (0.2 + 0.6)) / 6)
    assert found.excess["v"].value == pytest.approx(0.025) and found.excess["q"].value == pytest.approx(0, abs=1e-12)
    assert found.over["v"].value == pytest.approx(found.excess["k"].value - 0.025)
    verdicts = {
        name: next(q for q in QUANTITIES if q.name == f"{name}-composition in deeper models").judge(found).verdict
        for name in "KQV"
    }
    assert verdicts == dict.fromkeys("KQV", "agrees")
    none = deeper.read_by_induction_heads(made_up_heads(-0.05))
    assert deeper.judge_read_by_keys(none).verdict == "differs" and none.first == 0


def test_without_previous_token_heads_there_is_nothing_that_composes() -> None:
    m = made_up_heads(0.2)
    m.scores["previous_token"][:] = 0.01
    found = deeper.read_by_induction_heads(m)
    assert found.pairs == 0 and math.isnan(found.excess["k"].value)
    assert deeper.judge_read_by_keys(found).verdict == "differs" == deeper.judge_rather_than(found, "q", "").verdict


def test_a_lens_carries_what_heads_write_before_it_is_read(m: Measurements) -> None:
    """Copying scores against dense eigenvalues; with a lens that changes nothing, no verdict and no number moves."""
    one = torch.eye(m.lm.d_model, dtype=torch.float64)
    J = one + torch.randn(one.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = m.circuits.copying("raw", centre=False, carried=lambda _: J)
    W_E, W_U = m.lm.weights.W_E, m.lm.weights.W_U
    eigenvalues = torch.linalg.eigvals(W_E @ m.circuits.ov(1, 2).dense() @ J @ W_U)
    dense = float(eigenvalues.real.sum() / eigenvalues.abs().sum())
    assert float(found.score[1, 2]) == pytest.approx(dense, abs=1e-6)
    same, other = ByLens(m, lambda _: one), ByLens(m, lambda _: J)
    for quantity in STUDY.of_values:
        assert quantity.judgement(same) == quantity.judgement(m), quantity.name
    assert not torch.allclose(other.copying.score, m.copying.score, atol=0.05)
    mine, theirs = (next(q for q in STUDY.of_values if q.name == "one position").measure(x) for x in (m, other))
    layer, head = max(m.evidence, key=lambda e: e.induction).layer, max(m.evidence, key=lambda e: e.induction).head
    place, target = len(m.example[0]) - 1, theirs.effects.token
    seen = run(m.lm, m.example, ("pattern", "resid_pre", "resid_post"))
    norm, final = m.lm.structure.blocks[layer].attention.pre_norm, m.lm.structure.final_norm
    kv = head // m.lm.structure.blocks[layer].attention.queries_per_kv
    values = norm.normed(seen.at("resid_pre", layer))[0] @ m.lm.weights.W_V[layer][kv]
    written = seen.at("pattern", layer)[0, head, place, :, None] * (values @ m.lm.weights.W_O[layer][head])
    scale = final.scale(seen.at("resid_post", m.lm.n_layers - 1))[0, place]
    for effects, v in ((mine.effects, written), (theirs.effects, written @ J)):
        logits = v / scale * final.gain @ (W_U[:, target] - W_U.mean(dim=1))
        torch.testing.assert_close(effects.effect, logits, rtol=1e-4, atol=1e-6)


def test_layers_compose_as_their_strongest_pair_and_copying_has_three_summaries(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer, d_vocab = lettered("gpt2").tokenizer, lettered("gpt2").d_vocab
    config = AttentionOnlyConfig(vocab_size=d_vocab, hidden_size=16, num_hidden_layers=3, num_attention_heads=2)
    lm = unembed.load(AttentionOnlyForCausalLM(config).double().eval(), tokenizer=tokenizer)
    m = Measurements(lm, unembed.open_corpus(texts(6)), Work(tmp_path, {}), Options(None, 2, 200, 2))
    section = paths.composition_sections(m)
    assert [f.name for f in section.figures] == [f"{mode}_composition_of_layers" for mode in "qkv"]
    table = next(e.table for e in section.exhibits if e.name == "composition_of_layers")
    chance = unembed.circuits(lm).composition("k", baseline=True).max() - unembed.circuits(lm).composition("k").max()
    for row in table.rows():
        ratios = []
        for h, k in itertools.product(range(2), range(2)):
            ov, qk = m.circuits.ov(row["writer"], h).dense(), m.circuits.qk(row["reader"], k).dense()
            ratios.append(float((ov @ qk.T).norm() / ov.norm() / qk.norm()))
        assert row["k_composition"] == pytest.approx(max(ratios) + float(chance), abs=1e-9)
    copying = one_layer.copying_section(m)
    summaries = next(e.table for e in copying.exhibits if e.name == "copying_summaries")
    for row in summaries.rows():
        layer, head = (int(n) for n in row["head"][1:].split("H"))
        full = m.circuits.ov_full(layer, head).dense()
        z = (full.diagonal() - full.mean(dim=1)) / full.std(dim=1, correction=0)
        in_top = (full > full.diagonal()[:, None]).sum(dim=1) < 10
        assert row["diagonal_z"] == pytest.approx(float(z.mean()), abs=1e-9)
        assert row["own_in_top_10"] == pytest.approx(float(in_top.double().mean()))
        assert row["copying_score"] == pytest.approx(float(m.copying.score[layer, head]))
        assert row["effect_in_runs"] == pytest.approx(float(m.scores.copying[layer, head]))

"""The study of sub-updates on tiny models: every table beside the rooms it asks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unembed
from tests.cli.conftest import save_model
from tests.models.architectures.test_wikilm import wikilm
from tests.models.decoder_classes import tiny_model
from tests.reports.sample import (
    certain_shares,
    check_explanations,
    figures_without_published,
    tables_of_two_units,
    with_unlearned,
)
from tests.stream.test_massive_activations import with_massive_token
from tests.sweeps.recorder import lettered
from unembed.annotation.files import KINDS, Pattern
from unembed.annotation.from_values import automatic
from unembed.annotation.judge import judge_annotation
from unembed.concepts.detection import Concept, find_concepts
from unembed.concepts.value_concepts import model_classes, sample_memories, value_concepts
from unembed.corpus import open_corpus
from unembed.document.files import reopen
from unembed.errors import InvalidInput
from unembed.lens import read
from unembed.memories.event_sample import event_sample, example_batches
from unembed.memories.event_scores import candidate_scores, event_scores, extreme_sub_updates, scores_in_logits
from unembed.models.architectures.word_level import SPECIALS, word_tokenizer
from unembed.reports.geva2022 import QUANTITIES, published
from unembed.reports.geva2022.measurements import (
    NEGATED,
    VALUES,
    default_clusters,
    judged_values,
    measure,
    token_counts,
)
from unembed.reports.geva2022.options import Options
from unembed.reports.geva2022.parts import extremes
from unembed.reports.geva2022.parts.applications import small_sample
from unembed.reports.geva2022.parts.extremes import (
    cases_of,
    frequently_active,
    groups,
    inputs,
    is_rare,
    judge_groups,
    top_ids,
    ways_of,
)
from unembed.reports.stages import Work
from unembed.results import format_percent
from unembed.stream.massive_activations import LEFT_OUT, massive_positions

TEXTS = [f"The first month of the year is {w} a b c. {w} is the first month of the year" for w in "abcdefghijkl"]
OPTIONS: dict[str, Any] = {
    "examples": 20, "per_layer": 3, "clusters": 9, "norm_values": 8, "exit_protocol": "quick", "control": False,
}  # fmt: skip


@pytest.fixture(scope="module", params=["gpt2", "gemma2"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp(request.param)
    lm = unembed.load(save_model(folder / "tiny", request.param))
    return lm, unembed.report("geva2022", lm, TEXTS, folder / "report", seed=3, **OPTIONS), folder / "report"


def covered(concepts: list[list[Concept]]) -> np.ndarray:
    """The share of 30 tokens that belong to a concept, for each list."""
    return np.array([len({t for c in row if c.counted for t in c.members}) / 30 for row in concepts])


def test_every_table_and_figure_of_the_paper_is_there_and_opens_again(made):
    _, report, folder = made
    wanted = {"tab2", "fig2", "tab4", "event_counts", "saturation_by_layer", "events", "fig3", "extreme_groups",
              "extreme_clusters", "fig4", "fig6"}  # fmt: skip
    assert wanted <= set(report.exhibits)
    assert all(f.source for f in report.findings)
    assert figures_without_published(report) == [] == tables_of_two_units(report) + certain_shares(report)
    assert all(bool(f.explanation) == (f.verdict == "differs") for f in report.findings)
    again = reopen(folder)
    assert again.exhibits.keys() == report.exhibits.keys()
    assert again["tab4"].to_dict()["rows"] == report["tab4"].to_dict()["rows"]
    page = (folder / "report.html").read_text()
    assert "Tab. 4" in page and "1,579 saturations before the last layer" in page
    assert all(row["origin_text"] for row in report["published_values"].rows())
    assert report.facts["intervals"].startswith("95 %: exact for shares of examples, bootstrap over examples")
    assert "36.7" in page


def test_the_numbers_are_the_librarys(made):
    lm, report, _ = made
    every = event_sample(lm, TEXTS, 20, seed=3)
    sample = every.only(~massive_positions(every.stream_length))
    assert report.provenance.notes[LEFT_OUT] == len(every) - len(sample)
    rows = {(r["event"], r["sub_updates"]): r for r in report["tab4"].rows()}
    for kind in ("saturation", "elimination"):
        for random in (False, True):
            scores = event_scores(sample, kind, random=random)
            row = rows[kind, "random" if random else "dominant"]
            assert row["max_n"] == len(scores)
            if len(scores):
                assert row["max"] == pytest.approx(scores.max(1).mean(), rel=1e-5)
                assert row["max_low"] <= row["max"] <= row["max_high"]
                assert row["median_min"] == pytest.approx(np.median(scores.min(1)), rel=1e-5)
    in_logits = scores_in_logits(sample)[..., 1]
    for n, row in enumerate(report["fig3"].rows()):
        assert row["max_in_logits"] == pytest.approx(in_logits[n].max(-1).mean(), rel=1e-5)
        assert row["median_max"] == pytest.approx(np.median(candidate_scores(sample)[n].max(-1)), rel=1e-5)
        assert row["stream_length"] == pytest.approx(np.median(sample.stream_length[n]), rel=1e-5)
    assert [r["dominant"] for r in report["fig6"].rows()] == pytest.approx(sample.contribution.mean(1).tolist())
    shares = [r["share"] for r in report["saturation_by_layer"].rows()]
    assert shares == pytest.approx((np.bincount(sample.saturation, minlength=lm.n_layers) / len(sample)).tolist())
    for row in report["extreme_groups"].rows():
        if row["appearances"]:
            short, easy = row["short_prefix"], row["easy_target"]
            assert max(short, easy) - 1e-12 <= row["either"] <= min(1, short + easy) + 1e-12
    assert report.provenance.seed == 3
    for row in list(report["events"].rows())[:4]:
        assert lm.encode(row["prefix_text"]).shape[1] == row["position"] + 1


def test_a_second_run_gives_the_same_report(made, tmp_path: Path):
    lm, report, _ = made
    again = unembed.report("geva2022", lm, TEXTS, tmp_path / "again", seed=3, **OPTIONS)
    for name in report.exhibits:
        assert again[name].to_json() == report[name].to_json()


def test_rare_and_common_tokens_are_defined_by_their_counts():
    counts = np.array([100, 90, 80, 3, 2, 1])
    assert is_rare(counts, np.array([[0, 1], [0, 5], [4, 5]])).tolist() == [False, True, True]
    tied = np.array([9, 1, 1, 1, 8, 7])
    assert is_rare(tied, np.array([[i] for i in range(6)])).tolist() == [False, True, True, True, False, False]
    order = np.random.default_rng(0).permutation(6)
    assert (is_rare(tied[order], np.arange(6)[:, None]) == is_rare(tied, order[:, None])).all(), "whatever the ids"


def test_published_rows_are_whole():
    assert [len(published.SATURATION[m]) for m in ("wikilm", "gpt2")] == [16, 24]
    assert sum(published.SATURATION["wikilm"]) == pytest.approx(100.0, abs=1e-9)
    assert published.for_model(24) == "gpt2"
    assert published.for_model(6) is None


def test_bad_options_are_one_clear_line(made, tmp_path: Path):
    lm, *_ = made
    with pytest.raises(InvalidInput, match="'colour'"):
        unembed.report("geva2022", lm, TEXTS, tmp_path / "x", colour=1)
    with pytest.raises(InvalidInput, match="basis"):
        unembed.report("geva2022", lm, TEXTS, tmp_path / "x", basis="final")


def test_gated_values_are_read_at_both_ends(made):
    lm, report, _ = made
    rows = {row["vectors"]: row for row in report["tab2"].rows()}
    gated = lm.feed_forward(0).is_gated
    assert (NEGATED in rows) == gated
    if not gated:
        return
    chosen = sample_memories(lm, 3, 3)
    # The run decides which end of a value is the first of the two rows, so both together are compared.
    ends = [torch.stack([lm.values.top(n, i, 30, bottom=end)[0] for n, i in chosen]) for end in (False, True)]
    share = sum(covered(find_concepts(model_classes(lm), ids)) for ids in ends)
    assert rows[NEGATED]["in_a_concept"] + rows[VALUES]["in_a_concept"] == pytest.approx(share.mean())
    by_layer = [row["negated"] + row["in_a_concept"] for row in report["fig2"].rows()]
    assert by_layer == pytest.approx(share.reshape(lm.n_layers, -1).mean(1).tolist())


def test_values_of_gated_layers_have_the_sign_of_their_coefficients_in_the_run(tmp_path: Path) -> None:
    lm = lettered("llama")
    (tmp_path / "w").mkdir()
    m = measure(lm, open_corpus(TEXTS), Work(tmp_path / "w", {}, 3), Options(**OPTIONS))
    sums = torch.zeros(lm.n_layers, lm.d_mlp, dtype=torch.float64)
    for batch in example_batches(m.examples, 4096):
        ends = batch.counted & (batch.columns > 0)
        sums += lm.run(batch.tokens, "coefficients")["coefficients"][:, ends].double().sum(dim=1)
    assert torch.equal(torch.stack(list(m.signs)), sums.sign().float())
    vectors = m.concepts[VALUES].labels
    assert [name.startswith("-") for name in vectors] == [
        float(m.signs[n][i]) < 0 for n, i in sample_memories(lm, 3, 3)
    ]
    ways = ways_of(m, m.extreme)
    rows = zip(m.extreme.layer, m.extreme.example, m.extreme.index, ways, strict=True)
    for layer, example, index, way in rows:
        at = m.sample.dominant[layer, example].tolist().index(index)
        assert m.sample.coefficients[layer, example, at] * float(m.signs[layer][index]) * way > 0


class SeesOne:
    """A judge that calls the first four tokens of every vector animals."""

    annotator = "sees one"
    times = 0

    def patterns(self, items, instruction):
        assert len(items) == 30 and "tokens" in instruction
        type(self).times += 1
        return [Pattern("animals", "semantic", (0, 1, 2, 3))]


def test_a_judge_is_reported_next_to_the_program(made, tmp_path: Path):
    lm, *_ = made
    report = unembed.report("geva2022", lm, TEXTS, tmp_path / "x", seed=3, judge=SeesOne(), **OPTIONS)
    rows = {row["annotator"]: row for row in report["judged"].rows()}
    assert rows["sees one"]["semantic"] == pytest.approx(4 / 30) and rows["sees one"]["patterns_per_vector"] == 1
    found = value_concepts(lm, sample_memories(lm, 3, 3))
    assert rows["unembed"]["in_a_pattern"] == pytest.approx(np.mean(automatic(found).coverage(KINDS[:3])))
    assert {row["annotators"] for row in report["judge_agreement"].rows()} == {"unembed and sees one"}
    work, times = Work(tmp_path, {"judge": "sees one"}), SeesOne.times
    first = judged_values(found, SeesOne(), work)
    assert first == judge_annotation(found, SeesOne()) and SeesOne.times == times + 2 * len(found.labels)
    assert judged_values(found, SeesOne(), work) == first
    assert SeesOne.times == times + 2 * len(found.labels)
    with pytest.raises(InvalidInput, match="a judge of type str"):
        unembed.report("geva2022", lm, TEXTS, tmp_path / "y", judge="gpt")


def test_an_adaptive_softmax_is_read_by_its_log_probabilities(tmp_path: Path):
    words = [*SPECIALS, *(w for text in TEXTS for w in text.split()), *(f"w{i}" for i in range(97))]
    words = list(dict.fromkeys(words))[:97]
    model = wikilm()
    model.save_pretrained(tmp_path / "m")
    word_tokenizer(words).save_pretrained(tmp_path / "m")
    lm = unembed.load(tmp_path / "m")
    report = unembed.report("geva2022", lm, TEXTS, tmp_path / "r", seed=3, **{**OPTIONS, "include_unlearned": True})
    chosen = sample_memories(lm, 3, 3)
    values = torch.stack([lm.weights.W_out[n][i] for n, i in chosen])
    adaptive, band = (read(lm, values, 30, basis=basis).ids for basis in ("final", "raw"))
    assert (adaptive != band).any()
    share = covered(find_concepts(model_classes(lm), adaptive))
    rows = {row["vectors"]: row for row in report["tab2"].rows()}
    assert rows["sub-updates"]["in_a_concept"] == pytest.approx(share.mean())
    scores = candidate_scores(event_sample(lm, TEXTS, 20, seed=3), basis="adaptive")
    assert [row["max"] for row in report["fig3"].rows()] == pytest.approx(scores.max(-1).mean(-1).tolist())
    assert report.provenance.basis == "adaptive"
    dominant = next(
        row for row in report["tab4"].rows() if (row["event"], row["sub_updates"]) == ("saturation", "dominant")
    )
    assert dominant["max_published"] == 1.2, "WikiLM's own number, not GPT2's"
    with pytest.raises(InvalidInput, match="no adaptive softmax"):
        gpt2 = unembed.load(save_model(tmp_path / "gpt2", "gpt2"))
        unembed.report("geva2022", gpt2, TEXTS, tmp_path / "x", basis="adaptive")


def test_tokens_that_were_never_learned_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    lm, corpus = lettered("opt"), open_corpus(TEXTS)
    every = np.stack([[n, i, 1] for n in range(lm.n_layers) for i in range(lm.d_mlp)])
    (tmp_path / "all").mkdir()
    whole = measure(lm, corpus, Work(tmp_path / "all", {}, 3), Options(**OPTIONS))
    ids = [*dict.fromkeys([*whole.sample.final.tolist(), *top_ids(whole, every)[:, 0].tolist()])][:20]
    some = with_unlearned(lm, ids)
    for include in (False, True):
        (tmp_path / str(include)).mkdir()
        options = Options(**OPTIONS, include_unlearned=include)
        m = measure(some, corpus, Work(tmp_path / str(include), {}, 3), options)
        assert bool({*m.sample.final.tolist()} & {*ids}) == include
        assert bool({*top_ids(m, every).ravel().tolist()} & {*ids}) == include
        assert m.provenance.notes["unlearned tokens left out"] == (0 if include else len(ids))


def test_frequently_active_are_the_fewest_clusters_that_hold_nine_tenths() -> None:
    rows = np.array([5] * 60 + [2] * 30 + [7] * 6 + [1] * 4)
    assert sorted(set(rows[frequently_active(rows)])) == [2, 5]
    assert sorted(set(rows[frequently_active(np.append(rows, [8, 9]))[:100]])) == [2, 5, 7]
    assert len(frequently_active(np.zeros(0, np.int64))) == 0


def test_a_prefix_is_as_short_with_a_special_token_in_front_as_without(tmp_path: Path) -> None:
    for bos in (False, True):
        lm = lettered("opt", bos=bos)
        (tmp_path / str(bos)).mkdir()
        m = measure(lm, open_corpus(TEXTS), Work(tmp_path / str(bos), {}, 3), Options(**OPTIONS))
        check_explanations(QUANTITIES, m)
        assert (m.sample.length - m.text_lengths == int(bos)).all()
        texts = {segment.number: lm.decode(segment.tokens[int(bos) :]) for segment in m.examples}
        # One letter is one token here, and the decoder puts spaces between them.
        assert [(len(texts[int(n)]) + 1) // 2 for n in m.sample.segment] == m.text_lengths.tolist()


def test_explanations_of_scores_state_what_a_plain_count_finds(tmp_path: Path) -> None:
    lm = lettered("opt")
    (tmp_path / "w").mkdir()
    m = measure(lm, open_corpus(TEXTS), Work(tmp_path / "w", {}, 3), Options(**OPTIONS))
    s = m.sample
    shares = np.zeros(s.contribution.shape)
    for layer, example in np.ndindex(*shares.shape):
        sizes = [
            abs(s.coefficients[layer, example, i])
            * float(lm.weights.W_out[layer][s.dominant[layer, example, i]].norm())
            for i in range(10)
        ]
        shares[layer, example] = s.contribution[layer, example] * max(sizes) / sum(sizes)
    text = {q.name: q.explain(m) or "" for q in QUANTITIES}
    middle = float(np.median(shares.mean(axis=1)))
    assert f"The largest alone makes up {format_percent(middle)} of the sum" in text["contribution"]
    scores = candidate_scores(s, basis="raw")
    layer = int(scores.mean(axis=(1, 2))[: s.n_layers - 1].argmin())
    held: dict[int, float] = {}
    for index, score in zip(s.dominant[layer].ravel().tolist(), scores[layer].ravel().tolist(), strict=True):
        held[index] = held.get(index, 0.0) + min(score, 0.0)
    ordered, few = sorted(held.values()), 1
    while sum(ordered[:few]) > sum(ordered) / 2:
        few += 1
    assert f"comes from {few} of its {len(held):,} dominant memories" in text["non-negative means"]


def test_updates_of_fewer_than_ten_active_memories_are_counted(tmp_path: Path) -> None:
    lm = lettered("gpt2-relu")
    with torch.no_grad():
        for layer in range(lm.n_layers):
            lm.hf.transformer.h[layer].mlp.c_fc.bias[5:] = -100.0  # five memories can be active, no more
    report = unembed.report("geva2022", lm, TEXTS, tmp_path / "r", **OPTIONS)
    texts = [text for section in report.sections for text in section.text if "fewer than 10 active" in text]
    assert texts and texts[0].startswith("40 of the 40 updates, in 20 of the 20 examples")


@pytest.mark.parametrize(("given", "expected"), [(None, True), (False, False), (True, True)])
def test_the_shipped_text_is_read_in_ordinary_writing_by_models_of_it(
    given: bool | None, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def run(lm: Any, corpus: Any, work: Any, **options: Any) -> None:
        seen.append(corpus.detokenize)
        raise KeyboardInterrupt

    monkeypatch.setattr("unembed.reports.geva2022.run", run)
    models = [lettered("opt"), unembed.load(wikilm())]
    for lm, corpus in ((models[0], None), (models[0], "shipped"), (models[0], TEXTS), (models[1], "shipped")):
        with pytest.raises(KeyboardInterrupt):
            unembed.report("geva2022", lm, corpus, tmp_path / "r", detokenize=given)
    # Text of one's own, and WikiText read by a WikiLM, stay as they are unless it is asked for.
    assert seen == [expected, expected, bool(given), bool(given)]


@pytest.mark.parametrize(("n", "tested", "points"), [(600, "60", "± 6.0"), (5000, "500", "± 2.1")])
def test_early_exit_on_few_examples_is_marked_as_a_small_sample(n: int, tested: str, points: str) -> None:
    (text,) = small_sample(n)
    assert f"tests on {tested} examples" in text and points in text
    assert small_sample(10_000) == ()


def test_memories_of_experts_and_of_dense_layers_are_studied_together(tmp_path: Path):
    lm = unembed.load(tiny_model("glm4_moe"), tokenizer=lettered("gpt2").tokenizer)
    report = unembed.report("geva2022", lm, TEXTS, tmp_path / "report", seed=3, **OPTIONS)
    assert len(report.findings) == 18 and report.facts["memories (FFN neurons) a layer"] == "80 to 160"
    assert report.facts["experts"].startswith("in 3 of 4 layers")
    sample = event_sample(lm, TEXTS, 20, seed=3)
    assert [r["dominant"] for r in report["fig6"].rows()] == pytest.approx(sample.contribution.mean(1).tolist())
    assert [row["layer"] for row in report["fig6"].rows()] == [0, 1, 2, 3]


def test_prefixes_that_end_in_a_massive_token_are_left_out_of_events_and_updates(tmp_path: Path) -> None:
    lm = with_massive_token("llama", "e")
    m = measure(lm, open_corpus(TEXTS * 3), Work(tmp_path, {}, 3), Options(**{**OPTIONS, "examples": 36}))
    e = lm.single_token("e")
    assert m.left_out > 0 and m.provenance.notes[LEFT_OUT] == m.left_out
    assert len(m.sample) == len(m.examples) == 36 - m.left_out
    assert all(int(example.tokens[-1]) != e for example in m.examples)
    assert [example.number for example in m.examples] == m.sample.segment.tolist()
    assert set(m.update_prefixes.tolist()) <= {example.number for example in m.examples}


def test_clusters_are_as_many_as_in_the_paper_where_there_are_as_many_values() -> None:
    assert [default_clusters(n) for n in (5, 46_080, 65_536, 98_304, 10**6)] == [1, 4608, 10_000, 10_000, 10_000]


def test_the_papers_thresholds_periods_and_counts_of_another_text(made, tmp_path: Path) -> None:
    lm, report, _ = made
    every = event_sample(lm, TEXTS, 20, seed=3)
    sample = every.only(~massive_positions(every.stream_length))
    size = np.abs(candidate_scores(sample))
    for row, limit in zip(report["extreme_thresholds"].rows(), (None, 10.0, 5.0), strict=True):
        assert row["threshold"] == (limit or pytest.approx(np.quantile(size, 0.995), rel=1e-5))
        assert row["appearances"] == int((size > row["threshold"]).sum())
        assert row["share"] == pytest.approx((size > row["threshold"]).mean())
    (tmp_path / "larger.txt").write_text("a b c c c", encoding="utf-8")
    options = Options(**OPTIONS, frequency_text=str(tmp_path / "larger.txt"))
    m = measure(lm, open_corpus(TEXTS), Work(tmp_path, {}, 3), options)
    ids = torch.cat([segment.tokens for segment in open_corpus(str(tmp_path / "larger.txt")).segments(lm)])
    counts = torch.bincount(ids, minlength=lm.d_vocab).numpy()
    special = [i for i in (lm.tokenizer.bos_token_id, lm.tokenizer.eos_token_id) if i is not None]
    counts[special] = m.token_counts[special]
    assert m.token_counts.tolist() == counts.tolist()
    seen = m.token_counts if m.hidden is None else m.token_counts[~m.hidden.numpy()]
    assert m.unseen == pytest.approx((seen == 0).mean()) and m.unseen > 0.5
    assert "do not occur in the text" in judge_groups(groups(m)).here
    spaced = tmp_path / "larger.txt"
    spaced.write_text("a , b @-@ c", encoding="utf-8")
    m = measure(lm, open_corpus(TEXTS, detokenize=True), Work(tmp_path, {"detokenize": 1}, 3), options)
    own, other = (token_counts(lm, open_corpus(str(spaced), detokenize=plain)) for plain in (True, False))
    assert m.token_counts.tolist() == own.tolist() != other.tolist()
    tokens = lm.token_strings(m.sample.final.tolist())
    assert cases_of(m)["period"].tolist() == [token.strip() == "." for token in tokens]


def test_easy_inputs_are_counted_example_by_example(made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shares of appearances and of examples with a short prefix or a likely prediction, by passes one by one."""
    lm = made[0]
    m = measure(lm, open_corpus(TEXTS), Work(tmp_path, {}, 3), Options(**OPTIONS))
    size = np.abs(candidate_scores(m.sample))  # (layer, example, dominant)
    limit, easy = float(np.quantile(size, 0.8)), float(np.median(m.sample.final_probability))
    monkeypatch.setattr(extremes, "EASY", easy)
    found = inputs(replace(m, extreme=extreme_sub_updates(m.sample, limit)))
    assert found is not None
    short, likely = list[bool](), list[bool]()
    for example in m.examples:
        text = lm.tokenizer.decode(example.tokens, skip_special_tokens=True)
        short.append(len(lm.tokenizer(text, add_special_tokens=False).input_ids) <= 3)
        with torch.no_grad():
            last = lm.hf(example.tokens[None].long()).logits[0, -1]
        likely.append(float(last.softmax(-1).max()) >= easy - 1e-6)
    appearances = [n for layer in size for n, row in enumerate(layer) for score in row if score > limit]
    for name, cases in (("short_prefix", short), ("easy_target", likely)):
        extreme, every = found.cases[name]
        assert extreme.value == pytest.approx(np.mean([cases[n] for n in appearances])), name
        assert every.value == pytest.approx(np.mean(cases)), name
    either = [a or b for a, b in zip(short, likely, strict=True)]
    assert found.extreme.value == pytest.approx(np.mean([either[n] for n in appearances]))
    assert found.all.value == pytest.approx(np.mean(either)) and 0 < found.all.value < 1

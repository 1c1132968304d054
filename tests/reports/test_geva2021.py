"""The whole study on tiny models: what it leaves, that it goes on after a stop, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import unembed
from tests.conftest import tiny
from tests.models.decoder_classes import tiny_model
from tests.reports.sample import (
    certain_shares,
    check_explanations,
    figures_without_published,
    tables_of_two_units,
    with_unlearned,
)
from tests.stream.test_massive_activations import with_massive_token
from tests.sweeps.recorder import lettered, texts
from unembed.annotation.files import Pattern
from unembed.cli.commands import app
from unembed.corpus import open_corpus
from unembed.corpus.token_stream import TokenizedCorpus, TokenStream
from unembed.document.html import page
from unembed.errors import IndexFault, InvalidInput, UnembedError, Unsupported
from unembed.index import Index, IndexSettings
from unembed.lens import read
from unembed.reports import Report, reopen, stages
from unembed.reports.geva2021 import QUANTITIES, measurements, report_of
from unembed.reports.geva2021.annotator_agreement import compared, rule_labels
from unembed.reports.geva2021.examples import draw_positions
from unembed.reports.geva2021.options import Options
from unembed.reports.geva2021.parts.values import explain_upper
from unembed.reports.geva2021.patterns import Finder
from unembed.reports.geva2021.triggers import KeyTriggers, reducer
from unembed.reports.stages import Work
from unembed.results import format_number, format_percent
from unembed.stream.massive_activations import LEFT_OUT
from unembed.sweeps import sweep

SMALL: dict[str, Any] = dict(
    examples=30,
    top=6,
    shown=6,
    pattern_keys=2,
    perturbed_keys=2,
    predictive=10,
    compositions=5,
    tokens_per_batch=300,
    control=False,
)


def study(out: Path, family: str = "opt", **options: Any) -> Report:
    return unembed.report("geva2021", lettered(family), open_corpus(texts(12)), out, **{**SMALL, **options})


def test_every_figure_of_the_paper_has_its_table_and_findings(tmp_path: Path) -> None:
    report = study(tmp_path / "r")
    figures = [f.name for s in report.sections for f in s.figures]
    for number in range(2, 12):
        assert [name for name in figures if name.startswith(f"fig{number}_")], number
    assert len(report.findings) == 23
    for name in ("patterns", "perturbation", "agreement", "active", "zero_agreement", "residual", "breakdown"):
        assert [row["layer"] for row in report[name].rows()] == [0, 1]
    for row in report["breakdown"].rows():
        assert sum(row[k] for k in ("residual", "agreement", "composition", "ffn", "joint")) == pytest.approx(1)
    for row in report["patterns"].rows():
        assert sum(row[k] for k in ("shallow", "both", "semantic", "none")) == pytest.approx(1)
    assert len(report["predictive_values"]) == 10
    assert figures_without_published(report) == [] == tables_of_two_units(report) + certain_shares(report)
    assert all(bool(f.explanation) == (f.verdict == "differs") for f in report.findings)
    assert all(row["origin_text"] for row in report["published_values"].rows())
    settings = next(" ".join(s.text) for s in report.sections if s.title == "Settings")
    assert "exact binomial intervals" in settings and "whose layers are resampled together, or keys" in settings
    assert not (tmp_path / "r" / stages.STAGES).exists()
    assert page(reopen(tmp_path / "r")) == (tmp_path / "r" / "report.html").read_text(encoding="utf-8")


def test_memories_of_experts_and_of_dense_layers_are_studied_together(tmp_path: Path) -> None:
    lm = unembed.load(tiny_model("glm4_moe"), tokenizer=lettered("gpt2").tokenizer)
    (tmp_path / "w").mkdir()
    m = measurements.measure(lm, open_corpus(texts(12)), stages.Work(tmp_path / "w", {}, 4), Options(**SMALL))
    report = report_of(m, {})
    assert m.triggers.bounds.tolist() == [0, 160, 480, 800, 1120]
    assert report.facts["memories (FFN neurons) a layer"] == "80 to 160" and len(report.findings) == 23
    assert "experts that the router did not choose" in page(report)
    names = [row["value"] for row in report["predictive_values"].rows()]
    assert all(re.fullmatch(r"-?L0M\d+|-?L[123](E[0-3]M\d+|SM\d+)", name) for name in names)
    for row in m.triggers.sampled(2, 1, 0, "checked"):  # triggers lie where the router chose the expert
        place = int(m.triggers.positions[m.triggers.row(*row), 0])
        prefix = torch.from_numpy(m.text.prefix(place))[None]
        index, pole = m.triggers.memory(*row)
        coefficient = lm.run(prefix, "coefficients").at("coefficients", row[0])[0, -1, index]
        found = float(m.triggers.coefficients[m.triggers.row(*row), 0])
        assert (found < 0) == (pole == "negative") and found == pytest.approx(float(coefficient), rel=1e-4)


def test_numbers_in_the_tables_are_those_measured(tmp_path: Path) -> None:
    lm, corpus = lettered("gpt2"), open_corpus(texts(12))
    (tmp_path / "w").mkdir()
    m = measurements.measure(lm, corpus, stages.Work(tmp_path / "w", {}, 4), Options(**SMALL))
    check_explanations(QUANTITIES, m)
    report, e = report_of(m, {}), m.examples
    final = e["output"][-1]
    for layer, row in enumerate(report["residual"].rows()):
        assert row["match"] == pytest.approx((e["residual"][layer] == final).mean())
        assert row["probability_q50"] == pytest.approx(np.median(e["probability"][layer]), rel=1e-6)
        later = [(e["residual"][k] == final) for k in range(layer, lm.n_layers)]
        assert row["settled"] == pytest.approx(np.logical_and.reduce(later).mean())
        assert row["match_low"] <= row["match"] <= row["match_high"] and row["match_n"] == 30
    for layer, row in enumerate(report["zero_agreement"].rows()):
        assert row["differs_from_all"] == pytest.approx(1 - e["any_value"][layer].mean())
        assert row["differs_from_active"] == pytest.approx(1 - e["any_active"][layer].mean())
    for layer, row in enumerate(report["active"].rows()):
        assert row["carrying"] == pytest.approx(float(e["carrying"][layer].astype(float).mean()), rel=1e-6)
    a = m.agreement
    for layer, row in enumerate(report["agreement"].rows()):
        known = a.target[a.layer(layer)] >= 0
        assert row["agreement"] == pytest.approx(a.agrees[a.layer(layer)].sum() / known.sum())
    means = [np.nanmean([np.nanmean(c[:, 1]) for c in m.changes[m.perturbed[:, 0] == n]]) for n in range(lm.n_layers)]
    assert [row["last"] for row in report["perturbation"].rows()] == pytest.approx(means, rel=1e-5)


def test_a_stopped_study_resumes_with_the_stage_it_was_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = study(tmp_path / "whole")

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(measurements.perturbation, "changes", stop)
        with pytest.raises(KeyboardInterrupt):
            study(tmp_path / "stopped")
    with monkeypatch.context() as patch:
        patch.setattr(measurements, "sweep", stop)  # the sweep must not be needed again
        again = study(tmp_path / "stopped")
        with pytest.raises(KeyboardInterrupt):
            study(tmp_path / "stopped", seed=1)  # other numbers: nothing to go on from
    assert page(again) == page(whole)


def test_triggers_and_examples_together_take_one_pass_of_the_text(tmp_path: Path) -> None:
    lm, corpus = lettered("gpt2"), open_corpus(texts(12))
    options = Options(**SMALL)
    stream = TokenStream.of(corpus.segments(lm))
    places = draw_positions(stream, 30, "prefixes", 0, "letters")
    tokenized = TokenizedCorpus(corpus.name, corpus.fingerprint, stream)
    passes: list[int] = []
    hook = lm.structure.blocks[0].module.register_forward_pre_hook(lambda *_: passes.append(1))
    try:
        measurements._from_corpus(lm, tokenized, places, stages.Work(tmp_path, {}), options)
    finally:
        hook.remove()
    assert len(passes) == sum(1 for _ in corpus.batches(lm, options.tokens_per_batch)) > 3


def test_an_index_gives_the_same_report_as_its_corpus(tmp_path: Path) -> None:
    lm, corpus = lettered("opt"), open_corpus(texts(12))
    Index.build(lm, corpus, tmp_path / "index", top=6, settings=IndexSettings(min_prefix=1), tokens_per_batch=300)
    by_index = unembed.report("geva2021", lm, None, tmp_path / "a", index=str(tmp_path / "index"), **SMALL)
    by_corpus = unembed.report("geva2021", lm, corpus, tmp_path / "b", **SMALL)
    for name in ("agreement", "breakdown", "patterns", "perturbation", "predictive_values"):
        for ours, theirs in zip(by_index[name].rows(), by_corpus[name].rows(), strict=True):
            for column, value in ours.items():
                if isinstance(value, float):
                    assert value == pytest.approx(theirs[column], rel=1e-4, abs=1e-6, nan_ok=True), (name, column)
                else:
                    assert value == theirs[column], (name, column)
    with pytest.raises(IndexFault):
        unembed.report("geva2021", lettered("gpt2"), None, tmp_path / "c", index=str(tmp_path / "index"), **SMALL)


def test_labels_of_an_index_show_how_far_the_rules_agree_with_people(tmp_path: Path) -> None:
    lm, corpus = lettered("opt"), open_corpus(texts(12))
    index = Index.build(
        lm, corpus, tmp_path / "index", top=6, settings=IndexSettings(min_prefix=1), tokens_per_batch=300
    )
    text, triggers = index.passages, KeyTriggers.of_index(index, lm, 6)
    finder = Finder.of([text.prefix(p) for p in text.prefix_positions()[::9].tolist()], None, ())
    keys = [(0, i) for i in range(12)]
    ours = rule_labels(finder, text, triggers, keys)
    assert {row["notes"]["pattern"] for row in ours} == {None, "shallow"}  # both answers, else there is no kappa
    for n, (layer, i) in enumerate(keys):
        for row in (row for row in ours if (row["layer"], row["index"]) == (layer, i)):
            twin, other = row["notes"], {"pattern": None, "members": []}
            index.add_label(layer, i, row["label"], author="twin", kind="key", notes=twin)
            index.add_label(layer, i, row["label"], author="halfway", kind="key", notes=twin if n % 2 else other)
    found = compared(index.labels().rows(), finder, text, triggers)
    kappas = {(q, p): k for q, p, k in zip(found["question"], found["pair"], found["kappa"], strict=True)}
    assert kappas["is there a pattern", "rules and twin"] == 1.0
    assert kappas["does this token or prefix belong to one", "rules and twin"] == 1.0
    assert kappas["is there a pattern", "halfway and rules"] < 1.0
    report = unembed.report("geva2021", lm, None, tmp_path / "r", index=str(tmp_path / "index"), **SMALL)
    assert "rules and twin" in {row["annotators_text"] for row in report["people"].rows()}
    assert len(compared([], finder, text, triggers)["pair"]) == 0


def test_the_choices_of_the_released_code_are_options_recorded_in_the_provenance(tmp_path: Path) -> None:
    report = study(tmp_path / "r", draw="sentences", triggers="sentences", target="last", values_basis="final")
    assert report.provenance.notes["target"] == "last" and "target last" in page(report)
    chosen = {row["option"]: row["here"] for row in report["settings"].rows()}
    assert chosen["draw"] == "sentences" and chosen["triggers"] == "sentences"


def test_what_cannot_be_measured_is_refused_in_one_line(tmp_path: Path) -> None:
    lm = lettered("opt")
    cases: list[tuple[Any, Any, dict[str, Any], type[UnembedError], str]] = [
        (lm, None, {}, InvalidInput, r"neither a corpus nor an index: .* --corpus shipped"),
        (lm, texts(2), {"examples": 10**6}, InvalidInput, r"it has \d+ prefixes of text"),
        (
            lm,
            texts(2),
            {"exampels": 3},
            InvalidInput,
            "'exampels': the options of geva2021 are index, trigger_corpus, examples",
        ),
        (lm, texts(2), {"examples": "many"}, InvalidInput, "must be of type int"),
        (lm, texts(2), {"examples": 0}, InvalidInput, "at least 1"),
        (lm, texts(2), {"draw": "dice"}, InvalidInput, "one of 'prefixes', 'sentences'"),
        (lm, texts(2), {"fraction": 2.0}, InvalidInput, "must be between 0 and 1"),
        (unembed.load(tiny_model("mamba")), texts(2), {}, Unsupported, "memories of layer 0"),
        (lettered("attention-only"), texts(2), {}, Unsupported, "no layer of the model has an FFN"),
        (tiny("gpt2"), texts(2), {}, InvalidInput, "without a tokenizer"),
        (lm, None, {"index": str(tmp_path / "none")}, IndexFault, "none"),
    ]
    for model, corpus, options, kind, message in cases:
        with pytest.raises(kind, match=message) as caught:
            unembed.report("geva2021", model, corpus, tmp_path / "r", **options)
        assert "\n" not in str(caught.value)
    with pytest.raises(InvalidInput, match=r"no such study.*geva2021"):
        unembed.report("geva1821", lm, texts(2), tmp_path / "r")


def test_the_command_renders_again_without_a_model_and_refuses_bad_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = study(tmp_path / "r")
    (tmp_path / "r" / "report.html").unlink()
    monkeypatch.setattr(unembed, "load", lambda *_: pytest.fail("no model may be opened"))
    monkeypatch.setenv("COLUMNS", "100")
    ran = CliRunner().invoke(app, ["report", "geva2021", "--out", str(tmp_path / "r"), "--render"])
    assert ran.exit_code == 0, ran.output
    assert "of 23 published findings agree here" in ran.stdout and "wrote" in ran.stderr
    assert (tmp_path / "r" / "report.html").read_text(encoding="utf-8") == page(made)
    as_json = CliRunner().invoke(app, ["report", "geva2021", "-o", str(tmp_path / "r"), "--render", "--json"])
    assert json.loads(as_json.stdout)["schema"] == "unembed.report/2"
    for arguments, status, message in (
        (["report", "geva2021", "-o", str(tmp_path / "none"), "--render"], 1, "no report in"),
        (["report", "nobody1999", "-o", str(tmp_path / "r")], 1, "there is no such study"),
        (["report", "geva2021", "--option", "examples"], 2, "is not NAME=VALUE"),
    ):
        refused = CliRunner().invoke(app, arguments)
        assert refused.exit_code == status and message in refused.stderr


def test_the_control_reads_segments_of_the_study_that_are_already_tokenised(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    lm, corpus = lettered("gpt2", bos=True), open_corpus(texts(12), segmentation="windows", window=9, overlap=3)
    m = measurements.measure(lm, corpus, stages.Work(tmp_path / "w", {}), Options(**SMALL))
    control = measurements.control_corpus(m)
    own = [s.tokens[[0, *range(max(s.skip, 1), len(s))]].tolist() for s in corpus.segments(lm)]
    assert [s.tokens.tolist() for s in control.stream.segments()] == own  # all, because there are few
    assert any(s.skip for s in corpus.segments(lm)) and not any(s.skip for s in control.stream.segments())
    assert control.fingerprint == measurements.control_corpus(m).fingerprint
    (tmp_path / "c").mkdir()
    again = measurements.measure(lm, control, stages.Work(tmp_path / "c", {}), Options(**SMALL))
    assert again.text is control.stream and again.corpus_name.endswith(f"segments of {m.corpus_name}")


def test_explanations_state_what_a_plain_count_finds(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    m = measurements.measure(lettered("opt"), open_corpus(texts(12)), stages.Work(tmp_path / "w", {}), Options(**SMALL))
    e, text = m.examples, {q.name: q.explain(m) or "" for q in QUANTITIES}
    changes = [
        (layer, int(e["output_in_update"][layer][i]) == 1)
        for layer in range(m.n_layers)
        for i in range(len(m.positions))
        if e["output"][layer][i] != e["residual"][layer][i]
    ]
    most = max(range(m.n_layers), key=lambda n: sum(layer == n for layer, _ in changes))
    own, others = ([first for layer, first in changes if (layer == most) is here] for here in (True, False))
    assert (
        text["veto"]
        == text["compromise"]
        == (
            f"{format_percent(len(own) / len(changes))} of the changes are in layer {most}, where the new token is the "
            f"update's own first token in {format_percent(np.mean(own))}; in the other layers it is in "
            f"{format_percent(np.mean(others))}."
        )
    )
    a = m.agreement
    ranked = [int(rank) <= m.lm.d_vocab / 100 for rank in a.rank[: a.bounds[m.upper]] if rank > 0]
    assert (
        f"are {format_percent(np.mean(ranked))} of the next tokens in the layers below {m.upper}"
        in text["ranks improve"]
    )
    has = np.mean([r == o for r, o in zip(e["residual"][m.upper], e["output"][-1], strict=True)])
    assert f"already has {format_percent(has)} of the predictions first" in explain_upper(m)
    steps = np.diff(e["probability"].astype(float).mean(axis=1))
    assert f"into layer {steps.argmin() + 1} ({format_number(100 * steps.min())} points)" in text["probability grows"]


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_gated_memory_agrees_at_either_sign(tmp_path: Path, family: str) -> None:
    lm, corpus = lettered(family), open_corpus(texts(12))
    (tmp_path / "w").mkdir()
    m = measurements.measure(lm, corpus, stages.Work(tmp_path / "w", {}), Options(**SMALL))
    check_explanations(QUANTITIES, m)
    report, a = report_of(m, {}), m.agreement
    rows = zip(report["agreement_poles"].rows(), report["agreement"].rows(), strict=True)
    for layer, (at_signs, row) in enumerate(rows):
        agrees, known = (np.split(x[a.layer(layer)], 2) for x in (a.agrees, a.target >= 0))
        assert at_signs["stronger"] == pytest.approx(agrees[0].sum() / known[0].sum())
        assert at_signs["weaker"] == pytest.approx(agrees[1].sum() / known[1].sum())
        assert row["agreement"] == pytest.approx((agrees[0] | agrees[1]).sum() / (known[0] | known[1]).sum())
    best = list(report["predictive_values"].rows())
    assert {row["value"][0] for row in best} == {"L", "-"}
    for row in best:
        layer, index = map(int, row["value"].removeprefix("-").removeprefix("L").split("M"))
        bottom = row["value"].startswith("-")
        assert row["token"] == lm.values.top_tokens(layer, index, 1, bottom=bottom, show_unlearned=True)[0]
    active = list(report["active"].rows())
    assert "above_zero" not in active[0] and all(0 < row["above_usual"] < 1 for row in active)
    Index.build(lm, corpus, tmp_path / "index", top=6, settings=IndexSettings(min_prefix=1), tokens_per_batch=300)
    by_index = unembed.report("geva2021", lm, None, tmp_path / "a", index=str(tmp_path / "index"), **SMALL)
    for ours, theirs in zip(by_index["agreement"].rows(), report["agreement"].rows(), strict=True):
        assert ours["agreement"] == pytest.approx(theirs["agreement"], abs=1e-6)
    assert "agreement_poles" not in study(tmp_path / "opt").exhibits


class FirstThree:
    """A judge that always sees one pattern, in the first three items."""

    annotator = "first three"

    def __init__(self, kind: str = "shallow", tokens: tuple[int, ...] = (0, 1, 2)) -> None:
        self.kind, self.tokens, self.seen = kind, tokens, []

    def patterns(self, items, instruction):
        self.seen.append(list(items))
        assert "prefixes" in instruction
        return [Pattern("the first ones", self.kind, self.tokens)]


def test_a_judge_looks_at_the_same_prefixes_and_is_compared_with_the_rules(tmp_path: Path) -> None:
    lm, corpus, judge = lettered("opt"), open_corpus(texts(12)), FirstThree()
    (tmp_path / "w").mkdir()
    options = Options(**SMALL, judge=judge)
    m = measurements.measure(lm, corpus, stages.Work(tmp_path / "w", {}), options)
    keys = [key for key in zip(m.judged["layer"].tolist(), m.judged["index"].tolist(), strict=True)]
    looked = m.patterns["layer"] >= 0
    assert keys == list(zip(m.patterns["layer"][looked].tolist(), m.patterns["index"][looked].tolist(), strict=True))
    for (layer, index), items in zip(keys, judge.seen, strict=True):
        places = [p for p in m.triggers.positions[m.triggers.row(layer, index)][:6].tolist() if p >= 0]
        assert items == [lm.decode(m.text.prefix(p, special=False).tolist()) for p in places]
    np.testing.assert_allclose(m.judged["shallow"], 3 / m.judged["prefixes"])
    report = report_of(m, {})
    rows = list(report["patterns_judged"].rows())
    assert [r["layer"] for r in rows] == [0, 1] and all(r["patterns"] == 1 for r in rows)
    assert {r["annotators_text"] for r in report["people"].rows()} <= {"first three and rules"}
    assert any(r["option"] == "judge" and r["here"] == "first three" for r in report["settings"].rows())
    # A judge's answers are kept: a report that is run again after a stop does not ask again.
    n = len(judge.seen)
    measurements.measure(lm, corpus, stages.Work(tmp_path / "w", {}), options)
    assert len(judge.seen) == n


@pytest.mark.parametrize(("kind", "tokens"), [("topical", (0, 1, 2)), ("shallow", (0, 1)), ("shallow", (0, 1, 99))])
def test_a_judge_with_a_malformed_answer_is_one_clear_line(tmp_path: Path, kind: str, tokens: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="first three on key 0"):
        study(tmp_path / "r", judge=FirstThree(kind, tokens))
    with pytest.raises(InvalidInput, match="a judge of type str"):
        study(tmp_path / "r", judge="gpt")


def test_the_settings_are_those_of_the_index_and_too_few_triggers_are_reported_or_refused(tmp_path: Path) -> None:
    lm, corpus = lettered("opt"), open_corpus(texts(12))
    settings = IndexSettings(min_prefix=2, skip_first=True, per_document=1)
    Index.build(lm, corpus, tmp_path / "index", top=6, settings=settings, tokens_per_batch=300)
    given = {**SMALL, "top": 50, "index": str(tmp_path / "index")}
    report = unembed.report("geva2021", lm, None, tmp_path / "r", **given)
    settings = {row["setting"]: row["value"] for row in report["index_settings"].rows()}
    assert (settings["top"], settings["min_prefix"], settings["skip_first"], settings["per_document"]) == (
        "6",
        "2",
        "True",
        "1",
    )
    here = {row["option"]: row["here"] for row in report["settings"].rows()}
    assert here["top"] == "6, as the index holds 6" and here["triggers"] == "as the index (see below)"
    assert any("the index has 6" in text for section in report.sections for text in section.text)
    with pytest.raises(InvalidInput, match="the index has 6"):
        unembed.report("geva2021", lm, None, tmp_path / "x", **{**given, "shown": 7})


def test_tokens_that_were_never_learned_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    lm = lettered("opt")
    promoted = [row["token"] for row in study(tmp_path / "a")["predictive_values"].rows()]
    ids = [i for i in range(lm.d_vocab) if lm.token_strings([i])[0] in promoted]
    assert 0 < len(ids) <= 10
    some = with_unlearned(lm, ids)
    for include in (False, True):
        (tmp_path / str(include)).mkdir()
        options = Options(**SMALL, include_unlearned=include)
        m = measurements.measure(some, open_corpus(texts(12)), stages.Work(tmp_path / str(include), {}), options)
        found = {name: {*m.examples[name].ravel().tolist()} for name in ("residual", "update", "output")}
        found["values"] = {*m.agreement.top.tolist()}
        met = {name: bool(tokens & {*ids}) for name, tokens in found.items()}
        assert met["values"] == include and all(met.values()) <= include and any(met.values()) == include, met
        assert report_of(m, {}).provenance.notes["unlearned tokens left out"] == (0 if include else len(ids))


def test_triggers_come_from_a_corpus_of_their_own(tmp_path: Path) -> None:
    lm, examples = lettered("opt"), open_corpus(texts(12))
    other = tmp_path / "triggers.txt"
    other.write_text("\n\n".join(texts(9)[3:]), encoding="utf-8")
    made = unembed.report("geva2021", lm, examples, tmp_path / "a", **SMALL, trigger_corpus=str(other))
    of_examples = unembed.report("geva2021", lm, examples, tmp_path / "b", **SMALL)
    of_triggers = unembed.report("geva2021", lm, open_corpus(other), tmp_path / "c", **{**SMALL, "examples": 20})
    both = (
        (of_examples, ("active", "residual", "breakdown", "zero_agreement")),
        (of_triggers, ("agreement", "patterns", "perturbation")),
    )
    for expected, names in both:
        for name in names:
            for ours, theirs in zip(made[name].rows(), expected[name].rows(), strict=True):
                assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6, nan_ok=True), name  # batches round differently
    assert made["agreement"].to_dict()["rows"] != of_examples["agreement"].to_dict()["rows"]
    with pytest.raises(InvalidInput, match="one of the two"):
        unembed.report("geva2021", lm, examples, tmp_path / "x", index="i", trigger_corpus=str(other))


@pytest.mark.parametrize("detokenize", [True, False])
def test_triggers_of_another_corpus_are_written_as_the_examples_are(tmp_path: Path, detokenize: bool) -> None:
    (tmp_path / "other.txt").write_text(" ".join(["a 40 @-@ day ban , b c d e f g ."] * 20), encoding="utf-8")
    lm, corpus = lettered("opt"), open_corpus(texts(12), detokenize=detokenize)
    options = Options(**SMALL, trigger_corpus=str(tmp_path / "other.txt"))
    m = measurements.measure(lm, corpus, Work(tmp_path, {}), options)
    own = open_corpus(str(tmp_path / "other.txt"), detokenize=detokenize)
    assert m.text.token.tolist() == TokenStream.of(own.segments(lm)).token.tolist()
    written = "".join(document.text for document in own.documents())
    assert ("40-day ban, b" in written) == detokenize and ("@-@" in written) != detokenize


def test_examples_that_end_in_a_massive_token_are_left_out_of_every_mean(tmp_path: Path) -> None:
    lm = with_massive_token("llama", "e")
    report = unembed.report("geva2021", lm, open_corpus(texts(12)), tmp_path / "r", **SMALL)
    e, text = lm.single_token("e"), TokenStream.of(open_corpus(texts(12)).segments(lm))
    drawn = draw_positions(text, SMALL["examples"], "prefixes", 0, "letters")
    kept = [place for place in drawn.tolist() if int(text.prefix(place)[-1]) != e]
    assert 0 < len(kept) < len(drawn)
    assert report.facts["examples"] == len(kept)
    assert report.facts[LEFT_OUT] == report.provenance.notes[LEFT_OUT] == len(drawn) - len(kept)
    ends = [lm.run(torch.from_numpy(text.prefix(place)).long()[None]).logits[0, -1].softmax(-1) for place in kept]
    final = [int(p.argmax()) for p in ends]
    same = [
        int(
            read(
                lm, lm.run(torch.from_numpy(text.prefix(place)).long()[None], "resid_mid")["resid_mid"][0, 0, -1:], 1
            ).ids
        )
        == token
        for place, token in zip(kept, final, strict=True)
    ]
    assert next(iter(report["residual"].rows()))["match"] == pytest.approx(np.mean(same))


def test_triggers_that_end_in_a_massive_token_are_left_out(tmp_path: Path) -> None:
    """As far from the start of a text as the examples have such tokens; further on, nothing is measured."""
    lm, corpus = with_massive_token("llama", "e"), open_corpus(texts(12))
    m = measurements.measure(lm, corpus, Work(tmp_path, {"e": 100}), Options(**SMALL))
    (lists,) = sweep(lm, corpus, [reducer("prefixes", m.options.top)], tokens_per_batch=300)
    every, e = KeyTriggers.of_sweep(lists), lm.single_token("e")
    drawn = draw_positions(m.text, SMALL["examples"], "prefixes", 0, "letters")
    longest = m.text.prefix_lengths(drawn[m.text.tokens_at(drawn) == e]).max()
    at = every.positions
    massive = (m.text.tokens_at(at.ravel()).reshape(at.shape) == e) & (
        m.text.prefix_lengths(np.maximum(at, 0).ravel()).reshape(at.shape) <= longest
    )
    left = (at >= 0) & ~massive
    assert 0 < (at >= 0).sum() - left.sum() == m.triggers_left_out
    assert m.provenance.notes["triggers left out for massive activations"] == m.triggers_left_out
    for row, kept in enumerate(left):
        n = int(kept.sum())
        assert m.triggers.positions[row].tolist() == [*at[row, kept].tolist(), *[-1] * (len(kept) - n)]
        np.testing.assert_array_equal(m.triggers.coefficients[row, :n], every.coefficients[row, kept])
        assert (m.triggers.coefficients[row, n:] == -np.inf * every.sign[row]).all()
    section = next(s for s in report_of(m, {}).sections if s.title == "Keys capture input patterns")
    assert f"{m.triggers_left_out:,} triggers of all keys end at a position with massive" in section.text[0]
    plain = measurements.measure(lettered("llama"), corpus, Work(tmp_path, {"e": 1}), Options(**SMALL))
    assert plain.triggers_left_out == 0, "the control"

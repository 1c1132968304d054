"""A report of a model with a fitted lens: the paper's readings, and the verdicts that the lens changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unembed
from tests.cli.conftest import save_model
from tests.reports.sample import part_of
from tests.reports.test_geva2022 import OPTIONS, TEXTS
from unembed.corpus import open_corpus
from unembed.early_exit.example_prefixes import examples
from unembed.early_exit.published_table import table_6
from unembed.jacobian import JacobianLens, reading_by
from unembed.language_model import LanguageModel, load
from unembed.memories.event_scores import extreme_sub_updates
from unembed.reports import geva2021, geva2022
from unembed.reports.changed_verdicts import changed_verdicts
from unembed.reports.geva2022 import QUANTITIES
from unembed.reports.geva2022.applications import QUICK, by_top_tokens, measure_applications
from unembed.reports.geva2022.measurements import VALUES, Measurements, by_lens, measure
from unembed.reports.geva2022.options import Options
from unembed.reports.geva2022.parts import concepts, extremes
from unembed.reports.geva2022.parts.applications import toxicity_section
from unembed.reports.quantities import Judgement
from unembed.reports.stages import Work
from unembed.results import Provenance
from unembed.toxicity.scorers import Linear

TITLE = "Readings by the fitted lens"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "tiny", "gpt2")


@pytest.fixture(scope="module")
def lens(folder: Path) -> JacobianLens:
    text = " ".join(["The first month of the year is January a b c d e f g"] * 40)
    return load(folder).fit_lens([text], 4, 12)


def with_lens(folder: Path, lens: JacobianLens) -> LanguageModel:
    lm = load(folder)
    lm.use_lens(lens)
    return lm


def test_only_verdicts_that_differ_are_listed_with_both() -> None:
    of = QUANTITIES[:3]
    paper = [Judgement("1 of 2", "agrees"), Judgement("3 of 4", "differs"), None]
    other = [Judgement("0 of 2", "differs"), Judgement("4 of 4", "differs"), None]
    found = changed_verdicts(of, paper, other, Provenance("m", None, "float32"))
    assert found.title == TITLE and "Of the 2 findings" in found.text[0] and "1 verdict differs" in found.text[0]
    (row,) = found.exhibits[0].table.rows()
    assert (row["quantity"], row["verdict"], row["verdict_by_the_lens"]) == (of[0].name, "agrees", "differs")
    assert (row["measured"], row["measured_by_the_lens"]) == ("1 of 2", "0 of 2")
    same = changed_verdicts(of, paper, paper, Provenance("m", None, "float32"))
    assert not same.exhibits and "no verdict differs" in same.text[0]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("geva2022", {**OPTIONS, "exit_examples": 36, "exit_protocol": "quick", "changes": 4}),
        ("geva2021", {"control": False, "examples": 20}),
    ],
)
def test_a_report_keeps_the_papers_reading_and_adds_a_section(
    name: str, options: dict[str, Any], folder: Path, lens: JacobianLens, tmp_path: Path
) -> None:
    plain = unembed.report(name, load(folder), TEXTS, tmp_path / "plain", seed=3, **options)
    lm = with_lens(folder, lens)
    found = unembed.report(name, lm, TEXTS, tmp_path / "lens", seed=3, **options)
    assert lm.lens is not None
    assert [section.title for section in found.sections] == [*(section.title for section in plain.sections), TITLE]
    assert [finding.verdict for finding in found.findings] == [finding.verdict for finding in plain.findings]
    for one, other in zip(found.findings, plain.findings, strict=True):
        assert one.here.startswith(other.here), "a reading by the lens is added, and the paper's remains"


def test_values_are_read_by_the_lens_for_the_second_judgement(folder: Path, lens: JacobianLens, tmp_path: Path) -> None:
    lm = with_lens(folder, lens)
    options = Options(**{name: value for name, value in OPTIONS.items() if name != "control"})
    with reading_by(lm, None) as set_aside:
        assert set_aside is lens
        assert measure(lm, TEXTS, Work(tmp_path, {}, 3), options).concepts_by_lens is None
        m = measure(lm, TEXTS, Work(tmp_path, {}, 3, lens=lens), options)
    work = Work(tmp_path, {}, 3, lens=lens)
    with reading_by(lm, lens):
        other = by_lens(m, work)
    assert other is not None
    layer, index = lm.memory(*map(int, m.concepts[VALUES].labels[0][1:].split("M")))
    scores = lens.direction(lm.weights.W_out[layer][index], layer)
    scores[lm.unlisted] = -torch.inf
    assert other.concepts[VALUES].ids[0].tolist() == scores.topk(30).indices.tolist()
    assert m.concepts[VALUES].ids[0].tolist() != other.concepts[VALUES].ids[0].tolist()


def test_both_readings_of_values_have_their_own_random_vectors(
    folder: Path, lens: JacobianLens, tmp_path: Path
) -> None:
    options = Options(**{name: value for name, value in OPTIONS.items() if name != "control"})
    lm = load(folder)
    m = measure(lm, TEXTS, Work(tmp_path, {}, 3, lens=lens), options)
    assert m.concepts_by_lens is not None
    made = concepts.section(m)
    rows = {row["vectors"]: row for row in made.exhibits[0].table.rows()}
    assert list(rows)[: len(m.concepts)] == list(m.concepts), "the paper's reading is first"
    for name, found in m.concepts_by_lens.items():
        share = found.coverage(concepts.COUNTED)
        assert rows[name + ", by the lens"]["in_a_concept"] == pytest.approx(share.mean())
        assert found.labels == m.concepts[name].labels
    by_layer = made.exhibits[1].table
    assert {"values_by_lens", "random_vectors_by_lens"} <= set(by_layer.column_names)
    judged = concepts.QUANTITIES[0].judgement(m)
    assert judged is not None and "Read by the fitted lens, " in judged.here


def test_the_lens_reads_for_every_finding_that_rests_on_a_reading() -> None:
    """The others are of coefficients, of text or of the norm, which a reading by the lens includes."""
    others = {
        study.name: {quantity.name for quantity in study.quantities} - {quantity.name for quantity in study.of_values}
        for study in (geva2021.STUDY, geva2022.STUDY)
    }
    assert others["geva2022"] == {"norm keeps concepts", "contribution", "large contribution", "negative coefficients"}
    assert others["geva2021"] == {
        *("every key", "prefixes in patterns", "shallow to semantic", "the end matters"),
        *("upper layers are less shallow", "active memories", "active memories drop"),
    }


def test_early_exit_is_shown_by_both_readings(folder: Path, lens: JacobianLens, tmp_path: Path) -> None:
    options = {**OPTIONS, "exit_examples": 36, "exit_protocol": "quick"}
    plain = unembed.report("geva2022", load(folder), TEXTS * 3, tmp_path / "plain", seed=3, **options)
    lm = with_lens(folder, lens)
    made = unembed.report("geva2022", lm, TEXTS * 3, tmp_path / "lens", seed=3, **options)
    assert list(made["early_exit"].rows()) == list(plain["early_exit"].rows())
    own = examples(lm, open_corpus(TEXTS * 3), 36, seed=3, basis="jacobian")
    table = table_6(lm, own, clusters=192, **QUICK)
    shown = made["early_exit_by_lens"]
    assert shown.provenance.basis == "jacobian" and "published_accuracy" not in shown.column_names
    assert shown.columns["accuracy"] == [value / 100 for value in table.columns["accuracy"]]
    assert shown.columns["saved_layers"] == table.columns["saved_layers"]
    settled = made["saturation_frequency"]
    assert settled.columns["share"] == plain["saturation_frequency"].columns["share"]
    counts = torch.bincount(own.saturation, minlength=lm.n_layers).tolist()
    assert settled.columns["lens_share"] == [count / 36 for count in counts]


def test_extreme_sub_updates_and_their_tokens_are_read_by_the_lens(
    folder: Path, lens: JacobianLens, tmp_path: Path
) -> None:
    lm = load(folder)
    options = Options(**{name: value for name, value in OPTIONS.items() if name != "control"})
    work = Work(tmp_path, {}, 3, lens=lens)
    m = measure(lm, TEXTS, work, options)
    memories = np.array([[0, 5, 1], [1, 7, -1], [0, 9, 1]])
    plain = extremes.top_ids(m, memories)
    with reading_by(lm, lens):
        other = by_lens(m, work)
        assert other is not None
        found = extremes.top_ids(other, memories)
        scores = [lens.direction(lm.weights.W_out[n][i] * way * m.signs[n][i], n) for n, i, way in memories.tolist()]
    for row, of_row in zip(found, scores, strict=True):
        of_row[lm.unlisted] = -torch.inf
        assert row.tolist() == of_row.topk(10).indices.tolist()
    assert (plain != found).any()
    assert other.extreme.score.tolist() == extreme_sub_updates(other.sample).score.tolist()
    assert other.extreme.score.tolist() != m.extreme.score.tolist()
    assert other.changes is not None and m.changes is not None
    assert not np.array_equal(other.changes.score, m.changes.score)


def test_values_that_a_scorer_picks_by_the_lens_have_a_table(folder: Path, lens: JacobianLens, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The first month\nThe year is\n", encoding="utf-8")
    lm = load(folder)
    options = Options(exit_examples=0, prompts=str(prompts), beams=0)
    with reading_by(lm, lens):
        found = measure_applications(lm, open_corpus(TEXTS), Work(tmp_path, {}), options, "jacobian")
        by_words = by_top_tokens(lm, Work(tmp_path, {}), options, Linear()).edits
    assert found.notes == () and found.toxicity is not None
    assert found.toxicity.columns["arm"] == ["plain", "values picked by a scorer"]
    assert by_words != by_top_tokens(lm, Work(tmp_path, {}), options, Linear()).edits
    m = part_of(Measurements, applications=found, applications_by_lens=found, options=Options())
    shown = toxicity_section(m)
    assert shown is not None and [exhibit.name for exhibit in shown.exhibits] == ["toxicity", "toxicity_by_lens"]


def test_a_finished_report_is_made_again_for_another_lens(folder: Path, lens: JacobianLens, tmp_path: Path) -> None:
    options: dict[str, Any] = {"control": False, "examples": 20}
    unembed.report("geva2021", load(folder), TEXTS, tmp_path, seed=3, **options)
    made = unembed.report("geva2021", with_lens(folder, lens), TEXTS, tmp_path, seed=3, resume=True, **options)
    assert made.sections[-1].title == TITLE

"""A report of a model with a fitted lens: the paper's readings, and the verdicts that the lens changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import unembed
from tests.cli.conftest import save_model
from tests.reports.test_geva2022 import OPTIONS, TEXTS
from unembed.jacobian import JacobianLens, reading_by
from unembed.language_model import LanguageModel, load
from unembed.reports.changed_verdicts import changed_verdicts
from unembed.reports.geva2022 import QUANTITIES
from unembed.reports.geva2022.measurements import VALUES, by_lens, measure
from unembed.reports.geva2022.options import Options
from unembed.reports.geva2022.parts import concepts
from unembed.reports.quantities import Judgement
from unembed.reports.stages import Work
from unembed.results import Provenance

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
    assert found.title == TITLE and "Of the 2 findings" in found.text[0] and "1 verdict is another" in found.text[0]
    (row,) = found.exhibits[0].table.rows()
    assert (row["quantity"], row["verdict"], row["verdict_by_the_lens"]) == (of[0].name, "agrees", "differs")
    assert (row["measured"], row["measured_by_the_lens"]) == ("1 of 2", "0 of 2")
    same = changed_verdicts(of, paper, paper, Provenance("m", None, "float32"))
    assert not same.exhibits and "no verdict is another" in same.text[0]


@pytest.mark.parametrize(("name", "options"), [("geva2022", OPTIONS), ("geva2021", {"control": False, "examples": 20})])
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
    other = by_lens(m)
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

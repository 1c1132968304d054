"""No quantity stands for two, verdicts need every condition, and intervals resample what was drawn."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch

import tests.reports
import unembed
from tests.families import build
from tests.named_tests import missing, named_tests
from tests.reports.sample import part_of, sample
from tests.sweeps.recorder import lettered
from unembed.concepts.value_concepts import VectorConcepts
from unembed.document.intervals import Measured
from unembed.document.model import EXTENSION, Verdict, summary_line
from unembed.reports import elhage2021, geva2021, geva2022, write
from unembed.reports.geva2021.options import Options
from unembed.reports.geva2021.parts import aggregation, refinement, values
from unembed.reports.geva2021.parts.refinement import judge_compositions
from unembed.reports.geva2022.measurements import RANDOM, UPDATES, VALUES
from unembed.reports.geva2022.parts import concepts, extremes, layers
from unembed.reports.quantities import (
    UNEXPLAINED,
    Numbers,
    Quantity,
    Row,
    above,
    below,
    comparison,
    judged,
    once,
    verdict_of,
    within,
)
from unembed.results import Provenance


@pytest.mark.parametrize("rows", [geva2021.QUANTITIES, geva2022.QUANTITIES, elhage2021.QUANTITIES])
def test_no_quantity_is_counted_as_two_findings(rows: Sequence[Any]) -> None:
    for names in (
        [row.name for row in rows],
        [row.claim for row in rows],
        [row.what for row in rows],
    ):
        assert len({*names}) == len(names)


def test_a_verdict_needs_every_condition_and_one_that_fails_decides() -> None:
    assert verdict_of(True, True) == "agrees"
    assert verdict_of(True, None) == "inconclusive"
    assert verdict_of(True, None, False) == "differs"
    crosses = Measured(0.3, 0.1, 0.5, 10)
    assert [above(crosses, x) for x in (0.05, 0.3, 0.6)] == [True, None, False]
    assert [below(crosses, x) for x in (0.05, 0.3, 0.6)] == [False, None, True]
    assert [within(crosses, *x) for x in ((0, 1), (0.2, 1), (0.6, 1))] == [True, None, False]
    assert above(Measured(float("nan"), float("nan"), float("nan"), 0), 0) is None, "nothing was measured"


def test_a_quantity_is_measured_once_for_each_study() -> None:
    runs = []

    class Study:
        def __init__(self, share: float) -> None:
            self.share = share

    @once
    def share(m: Study) -> Numbers:
        runs.append(m)
        return Numbers(share=Measured(m.share, m.share, m.share, 10))

    quantity = Quantity(
        "share", "Half of them do.", where="Sec. 1", what="share", published="50 %", test="Between 40 and 60 %.",
        measure=share, judge=lambda n: judged(f"{n.share.value:.0%} do.", within(n.share, 0.4, 0.6)),
    )  # fmt: skip
    half, few = Study(0.5), Study(0.1)
    for m, verdict, explanation in ((half, "agrees", ""), (few, "differs", UNEXPLAINED), (half, "agrees", "")):
        finding = quantity.finding(m)
        assert finding is not None and (finding.verdict, finding.explanation) == (verdict, explanation)
    assert runs == [half, few]


def test_findings_of_report_json_have_the_names_that_others_read(tmp_path: Path) -> None:
    write(sample(), tmp_path / "r")
    stored = json.loads((tmp_path / "r" / "report.json").read_text(encoding="utf-8"))
    findings = [finding for section in stored["sections"] for finding in section["findings"]]
    names = {"published", "here", "source", "verdict", "test", "control", "informative"}
    assert findings and all(names <= {*finding} and "agrees" not in finding for finding in findings)
    assert {finding["verdict"] for finding in findings} == {*get_args(Verdict)} - {"not applicable"}
    assert [finding["informative"] for finding in findings] == [True, True, False]


def test_the_tests_that_the_package_names_exist() -> None:
    assert len(named_tests(tests.reports)) > 20
    assert missing(tests.reports) == []


def ends(found: Measured) -> tuple[float, float]:
    return found.low, found.high


def test_layers_of_an_example_are_no_draws_of_their_own() -> None:
    """The same layer several times over, or the same appearance, leaves every interval as it is."""
    random, n, lm = np.random.default_rng(0), 60, lettered("opt")
    once = {
        "any_active": random.random((2, n)) < 0.6,
        **{name: random.integers(3, 12, (2, n)) for name in ("update", "residual", "output")},
        "probability": random.random((2, n)),
    }

    def example_study(times: int) -> Any:
        text = SimpleNamespace(prefix_lengths=lambda places: places % 9, next_tokens=lambda places: places % 7)
        found = {name: np.repeat(rows, times, axis=0) for name, rows in once.items()}
        triggers = SimpleNamespace(n_layers=2 * times)
        return part_of(
            geva2021.Measurements,
            **{"lm": lm, "examples": found, "positions": np.arange(n), "seed": 0},
            **{"example_text": text, "triggers": triggers},
        )

    for measure, names in (
        (aggregation.agreeing, ("stops", "all_stops", "gold_stops", "shorts")),
        (refinement.outputs, ("composed",)),
    ):
        one, many = (vars(measure(example_study(times))) for times in (1, 8))
        for name in names:
            assert ends(many[name]) == pytest.approx(ends(one[name]), abs=1e-12), name
            assert one[name].low <= one[name].value < one[name].high
    minima = -random.random((7, n)) - np.r_[np.zeros(6), 3.0][:, None]
    here = [
        layers.judge_strongly_down(
            Numbers(minima=np.repeat(minima, times, axis=0), minima_in_logits=np.repeat(minima, times, axis=0), seed=0)
        ).here
        for times in (1, 2)
    ]
    assert re.findall(r"[\[−].*?\]", here[0]) == re.findall(r"[\[−].*?\]", here[1])
    appearances = random.integers(0, n, 40)

    class Extremes(list[int]):
        @property
        def example(self) -> np.ndarray:
            return np.array(self)

    studies = [
        part_of(
            geva2022.Measurements, extreme=Extremes(np.repeat(appearances, times).tolist()), seed=0,
            sample=SimpleNamespace(final_probability=np.zeros(n), final=np.zeros(n, int), length=np.arange(n) % 9),
            lm=lm,
        )
        for times in (1, 8)
    ]  # fmt: skip
    one, many = (extremes.inputs(m) for m in studies)
    assert one is not None and many is not None and ends(many.extreme) == pytest.approx(ends(one.extreme))


class Shares(VectorConcepts):
    """Concepts of vectors of which only the coverage is known."""

    def __init__(self, row: np.ndarray) -> None:
        object.__setattr__(self, "row", row)

    def coverage(self, kinds: Sequence[str] = ()) -> np.ndarray:
        return self.row


def test_updates_of_one_prefix_are_one_draw() -> None:
    random = np.random.default_rng(1)
    shares, prefixes = random.random(30), np.arange(30)

    def study(times: int) -> Any:
        rows = {VALUES: random.random(50), RANDOM: random.random(50), UPDATES: np.repeat(shares, times)}
        found = {name: Shares(row) for name, row in rows.items()}
        return part_of(
            geva2022.Measurements,
            concepts=found,
            concepts_by_lens=None,
            update_prefixes=np.repeat(prefixes, times),
            seed=0,
        )

    one, many = (concepts.coverage(study(times)).updates for times in (1, 8))
    assert ends(many) == pytest.approx(ends(one)) and many.n == 8 * one.n


def test_a_rank_that_improves_at_the_ends_alone_does_not_improve_through_the_layers() -> None:
    random, n = np.random.default_rng(2), 200
    (ranks,) = (quantity for quantity in values.QUANTITIES if quantity.name == "ranks improve")

    def verdict(*medians: int) -> str:
        rank = np.concatenate([m * random.uniform(0.9, 1.1, n) for m in medians])
        bounds = np.arange(len(medians) + 1) * n
        m = part_of(
            geva2021.Measurements,
            agreement=SimpleNamespace(rank=rank),
            triggers=SimpleNamespace(n_layers=len(medians), bounds=bounds),
            lm=SimpleNamespace(d_vocab=10_000),
            seed=0,
        )
        found = ranks.judgement(m)
        assert found is not None
        return found.verdict

    assert verdict(5000, 4000, 3000, 2000, 1000) == "agrees"
    assert verdict(1000, 2000, 3000, 4000, 400) != "agrees"
    assert verdict(1000, 2000, 3000, 4000, 5000) == "differs"


def test_most_compositions_of_the_last_layer_are_judged() -> None:
    """Random pairs are as close as random pairs are, so that most are distant; tokens of one embedding are related."""
    lm = unembed.load(build("gpt2", torch.float64), tokenizer=lettered("gpt2").tokenizer)
    random, n = np.random.default_rng(3), 60
    before, after = random.integers(3, 30, n), random.integers(40, lm.d_vocab, n)
    examples = {
        "residual": before[None],
        "update": np.full((1, n), 35),
        "output": after[None],
    }
    m = part_of(
        geva2021.Measurements, lm=lm, examples=examples, options=Options(compositions=n), seed=0,
        example_text=SimpleNamespace(token=np.repeat(np.arange(lm.d_vocab), 3)),
    )  # fmt: skip
    found = judge_compositions(m)
    assert len(found.chosen) == n and found.known.mean() > 0.75 and found.related.mean() < 0.25
    one = int((~found.related).nonzero()[0][0])
    with torch.no_grad():
        lm.weights.W_E[after[one]] = lm.weights.W_E[before[one]]
    again = judge_compositions(m)
    assert again.related[one] and again.known[one]


def test_each_unit_has_a_table_of_its_own() -> None:
    rows = (
        Row("patterns per key", Measured(2.5, 2.0, 3.0, 40), 3.6, "Sec. 3.2", "patterns"),
        Row("keys with a pattern", Measured(0.9, 0.8, 1.0, 40), 100, "Sec. 3.2"),
        Row("prefixes in a pattern", Measured(0.4, 0.3, 0.5, 90)),
    )
    provenance = Provenance("model", None, "float32")
    shares, patterns = comparison("keys", "Keys: here and published", rows, provenance, "A note.")
    assert (shares.name, patterns.name, shares.note, patterns.note) == ("keys", "keys_patterns", "A note.", "")
    assert shares.percent == ("here",) and patterns.percent == ()
    assert [row["here"] for row in shares.table.rows()] == [0.9, 0.4]
    assert [row["here_published"] for row in shares.table.rows()] == [1.0, None]
    (row,) = patterns.table.rows()
    assert (row["quantity_text"], row["here"], row["here_published"]) == ("patterns per key", 2.5, pytest.approx(3.6))
    assert patterns.table.title.endswith(", patterns")
    assert "unit" not in shares.table.column_names


def test_extensions_are_marked_and_counted_apart() -> None:
    quantity = Quantity(
        "share", "Half do.", where="Sec. 1", what="share", published="50 %", test="Above 0.",
        measure=lambda _: Numbers(), judge=lambda _: judged("All do.", True), extends={30}.__contains__,
    )  # fmt: skip
    own, extension = quantity.finding(2), quantity.finding(30)
    assert own is not None and (own.published, own.extension) == ("50 %", False)
    assert extension is not None and (extension.published, extension.extension) == (EXTENSION, True)
    assert summary_line([own]) == "1 of 1 published findings agree here, 0 differ, 0 inconclusive."
    absent = replace(own, verdict="not applicable")
    assert summary_line([own, absent]).endswith("agree here, 0 differ, 0 inconclusive, 1 not applicable.")
    both = "1 of 1 extensions to models of this depth agree here, 0 differ, 0 inconclusive."
    assert summary_line([own, extension]).endswith(both)

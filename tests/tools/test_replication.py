"""The page of published findings: made again from its data, and its counts from the findings."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import save_model
from tests.reports.sample import PROVENANCE
from tools.replication import DATA, OUTCOMES, PAGE, added, findings_of, outcome, page, rows_of

import unembed
from tools import replication
from unembed.document.files import write
from unembed.document.model import EXTENSION, Finding, Report, Section, Verdict
from unembed.errors import InvalidInput

STORED = json.loads(DATA.read_text(encoding="utf-8"))


def finding(claim: str, verdict: Verdict = "agrees", control: str = "none (differs)", here: str = "1 here.") -> Finding:
    return Finding(claim, "Sec. 3", "q.", "99 %", here, "t.", verdict, control, "(agrees)" not in control, "")


def report(model: str, *findings: Finding) -> Report:
    provenance = replace(PROVENANCE, model=model)
    return Report("geva2021", "t", "s", "source", provenance, (Section("Keys", (), (), (), findings),), {"layers": 2})


def test_the_page_is_made_from_the_stored_findings() -> None:
    assert page(STORED) == PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("study", list(STORED["studies"]))
def test_the_overview_counts_the_findings_on_the_page(study: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    of = STORED["studies"][study]
    for model, extension in itertools.product(of["models"], (False, True)):
        found = findings_of(of, model, extension=extension)
        if extension and not found:
            continue
        rows = rows_of(of, extension=extension)
        counts = Counter(outcome(found.get(row["claim"])) for row in rows)
        assert sum(counts.values()) == len(rows)
        assert f"| {study} | {model} | {' | '.join(str(counts[kind]) for kind in OUTCOMES)} |" in text


def test_every_finding_that_does_not_hold_is_explained_by_a_number() -> None:
    for study in STORED["studies"].values():
        for model in study["models"]:
            for claim, found in findings_of(study, model).items():
                assert bool(found.explanation) == (found.verdict == "differs"), claim
                assert not found.explanation or (re.search(r"\d", found.explanation) and found.explanation[-1] == ".")
                assert not re.search("[Uu]nexplained|was not measured", found.explanation)


def test_an_outcome_follows_from_the_verdict_and_the_control() -> None:
    assert outcome(finding("c", control="1 (differs)")) == "holds"
    assert outcome(finding("c", control="1 (inconclusive)")) == "holds, control open"
    assert outcome(finding("c", "not applicable")) == "cannot be tested"
    assert outcome(finding("c", control="1 (agrees)")) == "holds, but says nothing"
    assert outcome(finding("c", control="")) == "holds, no control"
    assert outcome(finding("c", "differs")) == "does not hold"
    assert outcome(finding("c", "inconclusive")) == "open"
    assert outcome(finding("c", "inconclusive", here="Not available: no heads")) == outcome(None) == "cannot be tested"


def test_a_model_is_replaced_and_claims_that_no_model_has_any_more_are_dropped() -> None:
    first = added({}, [report("a", finding("old")), report("b", finding("both"))])
    again = added(first, [report("a", finding("both"), finding("new"))], "examples=60")
    study = again["studies"]["geva2021"]
    assert [row["claim"] for row in study["claims"]] == ["both", "new"] and set(study["models"]) == {"a", "b"}
    assert set(findings_of(study, "b")) == {"both"} and first["studies"]["geva2021"]["claims"][0]["claim"] == "old"
    text = page(again)
    assert "**b** cannot be tested" in text and "sample examples=60" in text


def test_a_report_on_random_weights_is_the_control_of_the_model() -> None:
    of_model = report("a", finding("x", control=""), finding("y", "differs", control=""), finding("z", control=""))
    control = report("a with random weights", finding("x", here="2 there."), finding("z", "differs", here="3 there."))
    study = added(added({}, [of_model]), [control], "examples=9")["studies"]["geva2021"]
    found = findings_of(study, "a")
    assert (
        set(study["models"]) == {"a"} and study["models"]["a"]["facts"]["sample of the random weights"] == "examples=9"
    )
    assert [outcome(found[claim]) for claim in "xyz"] == ["holds, but says nothing", "does not hold", "holds"]
    assert found["x"].control == "2 there. (agrees)" and found["x"].here == "1 here." and not found["y"].control
    with pytest.raises(InvalidInput, match="no report on b"):
        added({}, [report("b with random weights", finding("x"))])


def test_extensions_are_listed_and_counted_apart_from_published_findings() -> None:
    """A claim that is published for one model and an extension for another stands in both lists, each with its own."""
    deep = [
        finding("own"),
        replace(finding("both", "differs"), published=EXTENSION),
        replace(finding("deep"), published=EXTENSION),
    ]
    stored = added({}, [report("a", *deep), report("b", finding("own"), finding("both"))])
    study = stored["studies"]["geva2021"]
    assert [row["claim"] for row in rows_of(study, extension=False)] == ["own", "both"]
    assert [row["claim"] for row in rows_of(study, extension=True)] == ["both", "deep"]
    published, _, extensions = page(stored).partition("### Extensions to deeper models")
    assert "### 2. both" in published and "deep" not in published.partition("## source")[2]
    assert "* **b**, holds" in published.partition("### 2. both")[2] and "**a** cannot be tested" in published
    assert "#### Extension 1. both" in extensions and "* **a**, does not hold" in extensions
    assert "**b**" not in extensions and EXTENSION not in page(stored)
    tables = page(stored).partition("Extensions, which no paper states:")
    assert "| geva2021 | a | 1 | 0 | 0 | 0 | 0 | 0 | 1 |" in tables[0] and "| geva2021 | b | 2 | 0" in tables[0]
    assert "| geva2021 | a | 1 | 0 | 0 | 0 | 1 | 0 | 0 |" in tables[2]
    assert "geva2021 | b" not in tables[2].partition("##")[0]


def test_text_of_a_report_is_no_markup() -> None:
    text = page(added({}, [report("a", finding("x < y, [1, 2] and *this*", here="a_b | c."))]))
    assert "x &lt; y, \\[1, 2\\] and \\*this\\*" in text and "a\\_b \\| c." in text


def test_the_command_adds_a_report_and_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "DATA", tmp_path / "replication.json")
    monkeypatch.setattr(replication, "PAGE", tmp_path / "replication.md")
    write(report("a", finding("c")), tmp_path / "report")
    replication.main(["add", str(tmp_path / "report"), "--sample", "examples=60"])
    replication.main(["page"])
    assert "**a**, holds: 1 here." in (tmp_path / "replication.md").read_text(encoding="utf-8")


def test_random_weights_are_saved_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "DATA", tmp_path / "none.json")
    folder = str(save_model(tmp_path / "model", "llama"))
    replication.main(["random", folder])
    own, found = unembed.load(folder), unembed.load(folder + replication.RANDOM)
    assert found.decode([5, 6]) == own.decode([5, 6])
    shapes = [(name, p.shape) for name, p in own.hf.named_parameters()]
    assert [(name, p.shape) for name, p in found.hf.named_parameters()] == shapes
    assert not any(torch.equal(a, b) for a, b in zip(own.weights.W_out, found.weights.W_out, strict=True))


@pytest.mark.parametrize("words", [("random", "/nowhere"), ("add", "/nowhere")])
def test_a_missing_folder_is_refused_in_one_line(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        replication.main(words)
    assert ended.value.code == 1 and capsys.readouterr().err.count("\n") == 1

"""The reports of several models as one: each finding and number under the model that it is of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.reports.sample import PROVENANCE
from unembed.document.html import page
from unembed.document.intervals import Measured
from unembed.document.model import EXTENSION, Finding, Report, Section, Verdict
from unembed.errors import InvalidInput
from unembed.reports.comparison import VERDICTS, claims, compared
from unembed.reports.quantities import Row, comparison


def made(model: str, verdict: Verdict, share: float, *, informative: bool = True) -> Report:
    finding = Finding("Keys capture patterns.", "Sec. 3", "q", "99 %", f"{share} here.", "t", verdict, "", informative)
    rows = [Row("keys with a pattern", Measured(share, share - 0.1, share + 0.1, 20), 99)]
    if model == "a":
        rows.append(Row("only here", Measured(0.5, 0.4, 0.6, 20)))
    provenance = replace(PROVENANCE, model=model, revision=None)
    section = Section("Keys", (), comparison("keys", "Here and published", rows, provenance), (), (finding,))
    return Report("geva2021", f"On {model}", "s", "source", provenance, (section,))


def test_numbers_and_verdicts_have_a_column_for_each_model() -> None:
    both = {"a": made("a", "agrees", 0.9, informative=False), "b": made("b", "differs", 0.3)}
    found = compared(both)
    (row,) = found[VERDICTS].rows()
    assert row == {"claim_text": "Keys capture patterns.", "a": "agrees, as do random weights", "b": "differs"}
    first, second = found["keys"].rows()
    assert (first["published"], first["a"], first["b"], first["b_high"], first["b_n"]) == (0.99, 0.9, 0.3, 0.4, 20)
    assert (second["quantity_text"], second["a"], second["b"]) == ("only here", 0.5, None)
    assert found.provenance.model == "a, b" and found.provenance.corpus == PROVENANCE.corpus
    assert claims(both)["Keys capture patterns."]["b"].here == "0.3 here."
    assert "0.3 here." in page(found)


def test_a_claim_of_one_model_is_not_available_for_the_other() -> None:
    other = made("b", "agrees", 0.5)
    found = compared({"a": made("a", "agrees", 0.9), "b": replace(other, sections=())})
    (row,) = found[VERDICTS].rows()
    assert row["b"] == "not available"


def test_reports_of_different_studies_are_refused() -> None:
    one = made("a", "agrees", 0.9)
    for reports in ({"a": one}, {"a": one, "b": replace(one, name="geva2022")}):
        with pytest.raises(InvalidInput, match="at least two reports of one study"):
            compared(reports)


def test_extensions_come_last_and_are_counted_apart() -> None:
    """On the page of one model they have their own list; in a comparison they follow the published claims."""
    (own,) = made("a", "differs", 0.9).findings
    deep = replace(own, claim="deep", verdict="agrees", published=EXTENSION)
    section = Section("Keys", findings=(deep, replace(own, claim="own")))
    reports = {name: replace(made(name, "differs", 0.9), sections=(section,)) for name in "ab"}
    both = compared(reports)
    rows = list(both[VERDICTS].rows())
    assert [row["claim_text"] for row in rows] == ["own", "deep"] and rows[1]["a"] == "agrees (extension)"
    assert both.facts["a"].startswith("0 of 1 findings agree, 1 of 1 extensions")
    alone = page(reports["a"])
    summary, _, after = alone.partition("Extensions to models of this depth")
    assert ">own<" in summary and ">deep<" not in summary and ">deep<" in after
    assert EXTENSION not in alone

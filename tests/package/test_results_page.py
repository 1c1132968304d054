"""RESULTS.md begins with a page made from its own tables."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import summary  # noqa: E402

SECTION = """
2026-11-23 · a processor

| claim | ratio | target | |
|---|---|---|---|
| {claim} | {ratio} | ≤ 1.1 | {note} |
"""


def test_the_first_page_and_the_groups_are_those_of_the_tables():
    text = (BENCHMARKS / "RESULTS.md").read_text()
    assert summary.page(summary.sections(text)) == text


def test_every_headline_has_a_measured_claim():
    found = summary.sections((BENCHMARKS / "RESULTS.md").read_text())
    shown = summary.page(found).split("## In short")[1].split("\n# ")[0]
    assert [sentence for _, _, sentence in summary.HEADLINES if f"| {sentence} |" not in shown] == []


def test_a_missed_claim_stands_before_the_headlines_with_its_ratio_and_date():
    found = {
        "Peak memory": SECTION.format(claim="load + trace, to a peer", ratio="1.3", note="missed · 2 GB"),
        "The trace job": SECTION.format(claim="readings", ratio="1", note="met"),
    }
    page = summary.page(found)
    missed, rest = page.split("## In short")
    assert "| Peak memory | 1 of 1 | load + trace, to a peer | 1.3 | ≤ 1.1 | 2026-11-23 |" in missed
    assert "The trace job" not in missed
    assert "| Peak memory of loading and tracing, to plain transformers | 1.3 | ≤ 1.1 | missed | 2026-11-23 |" in rest
    assert summary.sections(page) == {title: body.strip() for title, body in found.items()}

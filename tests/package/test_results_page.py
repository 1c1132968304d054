"""RESULTS.md begins with a page made from its own tables: ten claims, misses first."""

from __future__ import annotations

import re
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
    assert summary.page(summary.sections(text), summary.stated_changes(text)) == text


def test_every_headline_has_a_measured_claim():
    found = summary.sections((BENCHMARKS / "RESULTS.md").read_text())
    shown = in_short(summary.page(found, {}))
    assert [one.sentence for one in summary.HEADLINES if not any(row[0] == one.sentence for row in shown)] == []
    assert len(shown) == 10


def in_short(page: str) -> list[list[str]]:
    """The rows of the first page's claims."""
    section = page.split("## In short")[1].split("\n## ")[0]
    return [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in re.findall(r"^\| .+\|$", section, re.MULTILINE)[1:]
    ]


def test_each_claim_has_our_number_the_peers_the_ratio_and_a_date_and_misses_come_first():
    rows = in_short((BENCHMARKS / "RESULTS.md").read_text())
    assert [row for row in rows if len(row) != 7 or not all(row)] == []
    verdicts = [row[5] for row in rows]
    assert verdicts == sorted(verdicts, key=lambda verdict: verdict != "missed")


def test_our_number_over_the_peers_is_the_ratio():
    units = {"ms": 1e-3, "s": 1.0, "GB": 1.0, "%": 1.0}
    for sentence, ours, peer, ratio, *_ in in_short((BENCHMARKS / "RESULTS.md").read_text()):
        first, second = (float(number) * units[unit] for number, unit in (ours.split(), peer.split()))
        if "saves" in sentence and first <= 0:  # nothing was saved
            assert ratio == "inf", sentence
            continue
        found = second / first if "saves" in sentence else first / second
        assert abs(found / float(ratio) - 1) < 0.1, sentence


def test_every_section_is_dated_by_its_measurement():
    text = (BENCHMARKS / "RESULTS.md").read_text()
    section = text.split("## When it was measured")[1].split("\n# ")[0]
    assert [title for title in summary.sections(text) if title not in section] == []
    assert set(summary.SOURCES) == set(summary.GROUPS)


def test_a_missed_claim_precedes_the_headlines_with_its_ratio_and_date():
    found = {
        "Peak memory": SECTION.format(claim="load + trace, to a peer", ratio="1.3", note="missed · 2 GB"),
        "The trace job": SECTION.format(claim="readings", ratio="1", note="met"),
    }
    page = summary.page(found, {})
    missed = page.split("## Missed")[1].split("\n## ")[0]
    assert "| Peak memory | 1 of 1 | load + trace, to a peer | 1.3 | ≤ 1.1 | 2026-11-23 |" in missed
    assert "The trace job" not in missed
    first, second = in_short(page)
    assert first == [
        "Peak memory of loading and tracing, to plain transformers",
        "2 GB", "1.54 GB", "1.3", "≤ 1.1", "missed", "2026-11-23",
    ]  # fmt: skip
    assert second[0].startswith("A whole trace") and second[5] == "met"
    assert summary.sections(page) == {title: body.strip() for title, body in found.items()}


def test_a_table_older_than_its_code_says_so_wherever_it_is_shown():
    found = {
        "Peak memory": SECTION.format(claim="load + trace, to a peer", ratio="1.3", note="missed · 2 GB"),
        "The trace job": SECTION.format(claim="readings", ratio="1", note="met"),
    }
    changed = {"Memory and size": "2026-11-24", "A prompt": "2026-11-23"}
    page = summary.page(found, changed)
    assert [row[6] for row in in_short(page)] == ["2026-11-23; code changed 2026-11-24", "2026-11-23"]
    assert "| Memory and size | 2026-11-24 |  | Peak memory (2026-11-23) |" in page
    assert "| A prompt | 2026-11-23 | The trace job (2026-11-23) |  |" in page
    assert page.count("The code it measures was changed on 2026-11-24, after this run.") == 1
    assert summary.sections(page) == {title: body.strip() for title, body in found.items()}
    assert summary.stated_changes(page) == changed

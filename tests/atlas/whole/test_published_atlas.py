"""The atlas of SmolLM2 that the repository holds: its files agree with one another, and its lines can be run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from unembed.atlas import CARD, HEADS, MEMORIES, Card, open_card, read_lines, read_rule
from unembed.atlas.heads import head_sentences
from unembed.atlas.lines import described
from unembed.gallery import MemoryDescriptions

FOLDER = Path(__file__).parents[3] / "docs/atlas/smollm2"


@pytest.fixture(scope="module")
def lines():
    return read_lines(FOLDER / MEMORIES)


def test_it_is_whole_and_small(lines) -> None:
    assert len(lines) == 2 * 30 * 1536
    assert {path.name for path in FOLDER.iterdir()} == {MEMORIES, HEADS, CARD, "README.md", "index.html", "judged.md"}
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 10_000_000


def test_the_card_is_computed_from_the_lines(lines) -> None:
    stored = open_card(FOLDER)
    again = Card.of(lines, stored.provenance, stored.notes, stored.provenance.seed or 0)
    assert json.loads(json.dumps(again.to_dict())) == json.loads((FOLDER / CARD).read_text(encoding="utf-8"))


def test_lines_exceed_their_controls_where_they_were_drawn() -> None:
    card = open_card(FOLDER)
    assert card.drawn == min(1000, card.of_verdict["described"])
    for test in ("input", "output"):
        assert card.passes[test].low > 0.6 and card.random[test].value < 0.08
    assert card.described > 900 and card.drawn == 1000


def test_every_described_line_has_a_rule_that_can_be_read(lines) -> None:
    found = described(lines)
    assert all(line.rule is not None and line.tokens and line.input and line.output for line in found)
    for line in found[:: max(1, len(found) // 200)]:
        assert line.rule is not None
        assert read_rule(json.loads(line.rule))
    assert np.mean([line.test_accuracy for line in found]) > 0.7


def test_what_it_says_of_a_head_names_its_role_and_its_relation() -> None:
    found = head_sentences(FOLDER / HEADS)
    assert found[29, 2] == "country to capital: 89 % of the pairs, by its weights"
    assert found[17, 4] == "induction" and (29, 8) not in found
    words = MemoryDescriptions(heads=found)
    assert [row[:2] for row in words.heads_containing("Capital")] == [(29, 2), (29, 1)]
    assert words.heads_containing("pairs") == words.heads_containing("cap") == []

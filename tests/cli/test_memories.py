"""`unembed memories` shows the saved ranking: different memories in the terminal, all in order of score as data."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable

import pytest
from typer.testing import Result

from unembed.gallery import FILE, Gallery
from unembed.models import shipped_folder

Run = Callable[..., Result]


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> Gallery:
    """Wren's saved ranking, and no way to rank anew."""
    monkeypatch.setattr("unembed.rank_memories", None, raising=False)
    return Gallery.load(shipped_folder("wren") / FILE)


def test_data_are_the_saved_ranking_in_order_of_score(unembed: Run, saved: Gallery) -> None:
    found = unembed("memories", "--top", "30", "--json")
    assert json.loads(found.stdout) == json.loads(json.dumps(saved.first(30).to_dict()))
    assert found.stderr.count("\n") == 1 and "saved ranking of wren over wikitext-103 validation" in found.stderr
    rows = list(csv.DictReader(io.StringIO(unembed("memories", "--top", "30", "--csv").stdout)))
    assert [row["memory"] for row in rows] == [row.name for row in saved.first(30)]


def test_the_terminal_lists_at_most_three_of_a_concept_and_says_so(unembed: Run, saved: Gallery) -> None:
    concept = {row.name: row.concept for row in saved}
    found = unembed("memories", "--top", "20")
    listed = [word for line in found.stdout.splitlines() for word in line.split()[:1] if word in concept]
    counts = Counter(concept[name] for name in listed if concept[name] is not None)
    assert len(listed) == 20 and max(counts.values()) == 3
    assert listed[0] == saved[0].name
    assert "at most 3 of each concept" in found.stderr and "--by-score" in found.stderr
    whole = unembed("memories", "--top", "20", "--by-score")
    by_score = [word for line in whole.stdout.splitlines() for word in line.split()[:1] if word in concept]
    assert by_score == [row.name for row in saved.first(20)] != listed
    assert "--by-score" not in whole.stderr


@pytest.mark.parametrize("option", [("--recompute",), ("--layer", "5"), ("--seed", "1"), ("--show-unlearned",)])
def test_what_the_saved_ranking_does_not_answer_is_ranked_anew(
    unembed: Run, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...]
) -> None:
    ranked = Gallery.load(shipped_folder("wren") / FILE).first(2)
    monkeypatch.setattr("unembed.rank_memories", lambda *given, **settings: ranked, raising=False)
    found = unembed("memories", "--json", *option)
    assert json.loads(found.stdout) == json.loads(json.dumps(ranked.to_dict()))
    assert "saved ranking" not in found.stderr

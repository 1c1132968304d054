"""`unembed memories` shows the saved ranking, different memories first, in every form of output."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tests.models.decoder_classes import tiny_model
from tests.sweeps.recorder import lettered
from unembed.cli import option_groups
from unembed.cli.gallery import WITH_INGREDIENTS
from unembed.gallery import FILE, Gallery
from unembed.language_model import load
from unembed.models import shipped_folder

Run = Callable[..., Result]


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> Gallery:
    """Wren's saved ranking, and no way to rank anew."""
    monkeypatch.setattr("unembed.gallery.ranking.rank_memories", None)
    return Gallery.load(shipped_folder("wren") / FILE)


def test_every_form_has_the_same_memories_in_the_same_order(unembed: Run, saved: Gallery, tmp_path: Path) -> None:
    expected = [row.name for row in saved.varied().first(30)]
    found = unembed("memories", "--top", "30", "--json")
    assert json.loads(found.stdout) == json.loads(json.dumps(saved.varied().first(30).to_dict()))
    assert found.stderr.count("\n") == 1 and "saved ranking of wren over wikitext-103 validation" in found.stderr
    rows = list(csv.DictReader(io.StringIO(unembed("memories", "--top", "30", "--csv").stdout)))
    assert [row["memory"] for row in rows] == expected
    assert printed(unembed("memories", "--top", "30"), saved) == expected
    unembed("memories", "--top", "30", "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "different ones first" in page
    assert re.findall(r">(-?L\d+M\d+)<", page) == expected


def test_the_first_ten_have_ten_concepts_and_ten_patterns(unembed: Run, saved: Gallery) -> None:
    listed = json.loads(unembed("memories", "--top", "10", "--json").stdout)["memories"]
    for field in ("concept", "pattern"):
        named = [row[field] for row in listed if row[field]]
        assert len(named) == len(set(named)), field
    assert listed[0]["memory"] == saved[0].name


def test_by_score_lists_in_order_of_score(unembed: Run, saved: Gallery) -> None:
    names = [row.name for row in saved.first(20)]
    assert printed(unembed("memories", "--top", "20", "--by-score"), saved) == names
    data = json.loads(unembed("memories", "--top", "20", "--by-score", "--json").stdout)
    assert [row["memory"] for row in data["memories"]] == names and data["order"] == "score"


def test_a_narrow_terminal_leaves_the_ingredients_out_and_says_so(
    unembed: Run, saved: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    narrow = unembed("memories", "--top", "10")
    assert "coherence" not in narrow.stdout and "--csv has them" in narrow.stdout
    for row in saved.varied().first(10):
        (line,) = [line for line in narrow.stdout.splitlines() if line.split()[:1] == [row.name]]
        assert row.truth is not None and row.description[:40] in line
        assert line.split()[2] == f"{row.truth.correlation:.2f}", "with the correlation of its reading and its effect"
    monkeypatch.setenv("COLUMNS", str(WITH_INGREDIENTS))
    wide = unembed("memories", "--top", "10")
    assert "coherence" in wide.stdout and "--csv has them" not in wide.stdout


def printed(result: Result, gallery: Gallery) -> list[str]:
    """The names at the beginning of the printed lines."""
    names = {row.name for row in gallery}
    return [word for line in result.stdout.splitlines() for word in line.split()[:1] if word in names]


def test_a_damaged_ranking_is_named_and_ranked_anew(
    unembed: Run, saved: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE).write_text("{")
    monkeypatch.setattr("unembed.gallery.descriptions.shipped_folder", lambda _name: tmp_path)
    monkeypatch.setattr("unembed.gallery.ranking.rank_memories", lambda *given, **settings: saved.first(2))
    found = unembed("memories", "--json", "--top", "2")
    assert found.exit_code == 0 and len(json.loads(found.stdout)["memories"]) == 2
    (line,) = [line for line in found.stderr.splitlines() if "ranked anew" in line and "cannot be used" in line]
    assert str(tmp_path / FILE) in line and "not a saved gallery" in line


@pytest.mark.parametrize("option", [("--recompute",), ("--layer", "5"), ("--seed", "1"), ("--show-unlearned",)])
def test_what_the_saved_ranking_does_not_answer_is_ranked_anew(
    unembed: Run, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...]
) -> None:
    ranked = Gallery.load(shipped_folder("wren") / FILE).first(2)
    monkeypatch.setattr("unembed.gallery.ranking.rank_memories", lambda *given, **settings: ranked)
    found = unembed("memories", "--json", *option)
    assert json.loads(found.stdout) == json.loads(json.dumps(ranked.varied().to_dict()))
    assert "saved ranking" not in found.stderr


def test_a_model_without_memories_is_refused_before_an_index_is_proposed(
    unembed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = load(tiny_model("mamba2"), tokenizer=lettered("gpt2").tokenizer)
    monkeypatch.setattr(option_groups.Opening, "open", lambda self, seed=0: lm)
    for command in (("memories",), ("clusters",)):
        refused = unembed(*command)
        assert refused.exit_code == 1
        assert "memories of layer 0: no layer of the model has an FFN. Use attributions by component" in refused.stderr
        assert "index build" not in refused.stderr and not refused.stdout

"""Blind judgements of the gallery: documented counts are those of the stored answers, and the gallery beats chance."""

from __future__ import annotations

import json
from pathlib import Path

from scipy.stats import fisher_exact
from tools.gallery_judgements import scores

from unembed.gallery import Gallery
from unembed.models.shipped_models import shipped_folder

ROOT = Path(__file__).parents[2]
ANSWERS = ROOT / "tests/data/gallery/judgements.json"


def test_the_documented_counts_are_those_of_the_stored_answers() -> None:
    page = (ROOT / "docs/howto/gallery.md").read_text()
    names = {"first": "first 50", "other": "30 others", "random": "20 random vectors"}
    for kind, of in scores(ANSWERS).items():
        assert f"| {names[kind]} | {of['theme']} | {of['pattern']} | {of['both']} |" in page


def test_the_documented_agreement_of_the_second_judge() -> None:
    first = json.loads(ANSWERS.read_text())
    second = json.loads((ROOT / "tests/data/gallery/second_judge.json").read_text())
    tokens = sum(row["tokens_share"] == answer for row, (answer, _) in zip(first, second, strict=True))
    texts = sum(row["triggers_share"] == answer for row, (_, answer) in zip(first, second, strict=True))
    page = (ROOT / "docs/howto/gallery.md").read_text()
    assert f"gave the same answer on {tokens} of 100 items for the tokens and on {texts} for the texts" in page


def test_the_page_says_how_many_of_the_judged_items_are_still_the_first_of_the_shipped_gallery() -> None:
    judged = {row["memory"] for row in json.loads(ANSWERS.read_text()) if row["kind"] == "first"}
    shipped = Gallery.load(shipped_folder("wren") / "memories.json")
    same = len(judged & {row.name for row in list(shipped)[:50]})
    page = (ROOT / "docs/howto/gallery.md").read_text()
    assert f"Of its first 50, {same} are among the first 50 of the gallery that ships now" in page
    assert f"the {50 - same} others were not judged" in page


def test_the_first_memories_are_named_more_often_than_others_and_than_random_vectors() -> None:
    found = scores(ANSWERS)
    for kind in ("other", "random"):
        counts = [[found[k]["both"], found[k]["items"] - found[k]["both"]] for k in ("first", kind)]
        assert fisher_exact(counts, alternative="greater").pvalue < 1e-5

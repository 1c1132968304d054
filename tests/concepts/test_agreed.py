"""Agreement over stored labels, against scikit-learn on the same answers."""

from __future__ import annotations

import random

import pytest
from sklearn.metrics import cohen_kappa_score

from unembed.concepts.annotation.majority import agreement


def row(author: str, index: int, kind: str | None, members: list[int]) -> dict:
    notes = {"pattern": kind, "members": members}
    return {"kind": "value", "layer": 0, "index": index, "author": author, "notes": notes}


def test_members_are_compared_place_by_place():
    draw = random.Random(0)
    said = {who: [sorted(draw.sample(range(30), 6)) for _ in range(5)] for who in "ab"}
    rows = [row(who, i, "semantic", members) for who, lists in said.items() for i, members in enumerate(lists)]
    found = {one.question: one for one in agreement(rows)}
    flat = {who: [place in members for members in lists for place in range(30)] for who, lists in said.items()}
    members = found["does this token or prefix belong to one"]
    assert members.pairs["a and b"] == pytest.approx(cohen_kappa_score(flat["a"], flat["b"]))
    assert members.items == 150
    assert found["is there a pattern"].pairs == {"a and b": None}


def test_several_patterns_of_one_person_are_one_answer():
    rows = [row("a", 1, "names", [0, 1, 2, 3]), row("a", 1, "semantic", [4, 5, 6, 7]), row("b", 1, None, [])]
    rows += [row("a", 2, None, []), row("b", 2, None, [])]
    found = {one.question: one for one in agreement(rows)}
    assert found["is there a pattern"].pairs["a and b"] == pytest.approx(cohen_kappa_score([1, 0], [0, 0]))
    assert found["which kinds of pattern"].items == 2


def test_one_annotator_agrees_with_nobody():
    assert all(one.items == 0 and one.fleiss is None for one in agreement([row("a", 1, "names", [0, 1, 2, 3])]))

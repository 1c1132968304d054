"""Kappas against scikit-learn and Fleiss' own example; agreement over stored labels and over annotation files."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from tests.annotation.conftest import filled
from unembed import annotation
from unembed.annotation.agreement import cohen_kappa, fleiss_kappa, label_agreement
from unembed.errors import InvalidInput


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=2, max_size=40))
def test_cohens_kappa_is_scikit_learns(pairs):
    first, second = zip(*pairs, strict=True)
    if len({*first, *second}) == 1:
        assert np.isnan(cohen_kappa(first, second))
    else:
        assert cohen_kappa(first, second) == pytest.approx(cohen_kappa_score(first, second), abs=1e-12)


def test_fleiss_kappa_is_that_of_the_published_example():
    # Fleiss 1971, Table 1 as used everywhere: 10 subjects, 14 raters, 5 categories, kappa 0.210.
    counts = [
        (0, 0, 0, 0, 14), (0, 2, 6, 4, 2), (0, 0, 3, 5, 6), (0, 3, 9, 2, 0), (2, 2, 8, 1, 1),
        (7, 7, 0, 0, 0), (3, 2, 6, 3, 0), (2, 5, 3, 2, 2), (6, 5, 2, 1, 0), (0, 2, 2, 3, 7),
    ]  # fmt: skip
    items = [[label for label, c in enumerate(row) for _ in range(c)] for row in counts]
    assert fleiss_kappa(items) == pytest.approx(0.210, abs=5e-4)


def test_kappa_at_its_ends_and_bad_labels():
    assert cohen_kappa([1, 0, 1, 0], [1, 0, 1, 0]) == 1.0
    assert cohen_kappa([1, 1, 0, 0], [1, 0, 1, 0]) == 0.0
    assert fleiss_kappa([[1, 1, 1], [0, 0, 0]]) == 1.0
    with pytest.raises(InvalidInput, match="same items"):
        cohen_kappa([1], [1, 0])
    with pytest.raises(InvalidInput, match="the same number of labels"):
        fleiss_kappa([[1, 0], [1, 0, 1]])


def row(author: str, index: int, kind: str | None, members: list[int]) -> dict:
    notes = {"pattern": kind, "members": members}
    return {"kind": "value", "layer": 0, "index": index, "author": author, "notes": notes}


def test_members_are_compared_position_by_position():
    draw = random.Random(0)
    answers = {who: [sorted(draw.sample(range(30), 6)) for _ in range(5)] for who in "ab"}
    rows = [row(who, i, "semantic", members) for who, lists in answers.items() for i, members in enumerate(lists)]
    found = {one.question: one for one in label_agreement(rows)}
    flat = {who: [position in members for members in lists for position in range(30)] for who, lists in answers.items()}
    members = found["does this token or prefix belong to one"]
    assert members.pairs["a and b"] == pytest.approx(cohen_kappa_score(flat["a"], flat["b"]))
    assert members.items == 150
    assert found["is there a pattern"].pairs == {"a and b": None}


def test_several_patterns_of_one_person_are_one_answer():
    rows = [row("a", 1, "names", [0, 1, 2, 3]), row("a", 1, "semantic", [4, 5, 6, 7]), row("b", 1, None, [])]
    rows += [row("a", 2, None, []), row("b", 2, None, [])]
    found = {one.question: one for one in label_agreement(rows)}
    assert found["is there a pattern"].pairs["a and b"] == pytest.approx(cohen_kappa_score([1, 0], [0, 0]))
    assert found["which kinds of pattern"].items == 2


def test_a_single_annotator_has_no_agreement():
    assert all(one.items == 0 and one.fleiss is None for one in label_agreement([row("a", 1, "names", [0, 1, 2, 3])]))


def test_agreement_counts_tokens(found, tmp_path: Path):
    sets = {"a": [0, 1, 2, 3], "b": [2, 3, 4, 5], "c": [0, 1, 2, 3]}
    read = []
    for name, tokens in sets.items():
        pattern = {"description": "x", "kind": "names", "tokens": tokens}
        read.append(annotation.load(filled(found, tmp_path / f"{name}.json", [pattern])))
    labels = {n: [i in t for i in range(40)] for n, t in sets.items()}
    rows = {(r["question"], r["annotators"]): r for r in annotation.token_agreement(read).rows()}
    for pair in (("a", "b"), ("a", "c")):
        row = rows["in a concept", " and ".join(pair)]
        assert row["kappa"] == pytest.approx(cohen_kappa_score(labels[pair[0]], labels[pair[1]]))
        assert row["statistic"] == "Cohen"
    every = rows["in a concept", "a and b and c"]
    assert every["kappa"] == pytest.approx(fleiss_kappa(list(zip(*labels.values(), strict=True))))
    program = annotation.automatic(found)
    assert program.token_labels(("semantic", "syntactic", "names")) == [
        any(t in c.members and c.counted for c in concepts)
        for ids, concepts in zip(found.ids.tolist(), found.concepts, strict=True)
        for t in ids
    ]
    assert len(annotation.token_agreement([read[0], program])) == 5


def test_agreement_needs_two_annotations_of_the_same_lists(found):
    with pytest.raises(InvalidInput, match="two annotators or more"):
        annotation.token_agreement([annotation.automatic(found)])

"""Kappas against scikit-learn and against the example of the paper."""

from __future__ import annotations

import random

import pytest
from sklearn.metrics import cohen_kappa_score

from unembed.concepts.agreed import agreement
from unembed.concepts.kappa import cohen_kappa, fleiss_kappa
from unembed.errors import InvalidInput


@pytest.mark.parametrize("seed", range(5))
def test_cohen_is_scikit_learns(seed):
    draw = random.Random(seed)
    a, b = ([draw.choice("xyz") for _ in range(40)] for _ in range(2))
    assert cohen_kappa(a, b) == pytest.approx(cohen_kappa_score(a, b), abs=1e-12)


def test_fleiss_on_the_papers_example():
    counts = [
        (0, 0, 0, 0, 14), (0, 2, 6, 4, 2), (0, 0, 3, 5, 6), (0, 3, 9, 2, 0), (2, 2, 8, 1, 1),
        (7, 7, 0, 0, 0), (3, 2, 6, 3, 0), (2, 5, 3, 2, 2), (6, 5, 2, 1, 0), (0, 2, 2, 3, 7),
    ]  # fmt: skip
    answers = [[k for k, n in enumerate(row) for _ in range(n)] for row in counts]
    assert fleiss_kappa(answers) == pytest.approx(0.210, abs=5e-4)


def test_answers_that_are_all_the_same_have_no_kappa():
    assert cohen_kappa([1, 1], [1, 1]) is None
    assert fleiss_kappa([[1, 1], [1, 1]]) is None


def test_unequal_answers_are_refused():
    with pytest.raises(InvalidInput):
        cohen_kappa([1], [1, 2])
    with pytest.raises(InvalidInput):
        fleiss_kappa([[1, 2], [1]])


def test_one_annotator_agrees_with_nobody():
    row = {
        "kind": "value",
        "layer": 0,
        "index": 1,
        "author": "a",
        "notes": {"pattern": "names", "members": [0, 1, 2, 3]},
    }
    assert all(found.items == 0 and found.fleiss is None for found in agreement([row]))

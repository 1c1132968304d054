"""Every finding of geva2021 on made-up numbers: one set agrees, one disagrees, and one is inconclusive."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.reports.geva2022.test_parts import around
from tests.reports.sample import part_of
from unembed.reports.geva2021 import QUANTITIES
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.parts.refinement import overturned
from unembed.reports.geva2021.parts.values import PAPER_BINS, by_paper_bins
from unembed.reports.geva2021.values import Agreement
from unembed.reports.quantities import Numbers

PATTERNS: dict[str, Any] = {"some": around(1), "number": around(3), "covered": around(0.7), "by_chance": around(0.3)}
PREDICTIVE: dict[str, Any] = {"even": 0.375, "usual": around(0.1, 0.02), "n": 100, "upper": 10}
AGREEMENT: dict[str, Any] = {
    "low": around(0.001), "high": around(0.03), "last": around(0.035, 0.005), "whole": around(0.02), "upper": 10,
    "by_chance": 0.0001, "one_token": 4e-6, "n_tokens": 9999,
}  # fmt: skip
CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "every key": tuple({**PATTERNS, "number": around(*x)} for x in ((3.6, 0.5), (20, 1), (7, 1))),
    "prefixes in patterns": tuple(
        {**PATTERNS, "covered": around(*x)} for x in ((0.7, 0.05), (0.3, 0.05), (0.55, 0.05))
    ),
    "shallow to semantic": tuple(
        {"semantic_rises": around(0.2, 0.1), "shallow_falls": around(*x), "upper": 10}
        for x in ((0.2, 0.1), (-0.2, 0.1), (0.05, 0.1))
    ),
    "the end matters": tuple(
        {"first": around(-0.1), "last": around(-0.5), "lead": around(*x), "layers": 14, "n_layers": 16}
        for x in ((0.4, 0.1), (-0.4, 0.1), (0.05, 0.1))
    ),
    "upper layers are less shallow": tuple({"trend": around(*x)} for x in ((0.4, 0.1), (-0.4, 0.1), (0, 0.1))),
    "agreement rises": tuple({**AGREEMENT, "low": around(*x)} for x in ((0.001, 0.001), (0.02, 0.001), (0.005, 0.001))),
    "agreement above chance": tuple(
        {**AGREEMENT, "whole": around(*x)} for x in ((0.02, 0.001), (0.0005, 0.0001), (0.001, 0.0005))
    ),
    "ranks improve": tuple(
        {"medians": [12000.0, 1000.0], "trend": around(*x), "d_vocab": 50000}
        for x in ((-0.4, 0.1), (0.4, 0.1), (0, 0.1))
    ),
    "probability and agreement": tuple(
        {"bins": [around(0.01)] * 7 + [around(*x)], "trend": around(0.3, 0.1)}
        for x in ((0.9, 0.05), (0.0, 0.005), (0.01, 0.05))
    ),
    "predictive values are upper": tuple(
        {**PREDICTIVE, "in_upper": around(*x)} for x in ((0.97, 0.03), (0.4, 0.1), (0.75, 0.1))
    ),
    "predictive values agree": tuple(
        {**PREDICTIVE, "some": around(*x)} for x in ((0.46, 0.1), (0.1, 0.05), (0.35, 0.1))
    ),
    "active memories": tuple(
        {"what": "fire", "layers": [around(0.2), around(*x)]} for x in ((0.4, 0.02), (0.008, 0.001), (0.5, 0.01))
    ),
    "active memories drop": tuple(
        {"layers": [around(0.45), around(0.4), around(0.3), around(*x), around(0.2), around(0.18)]}
        for x in ((0.12, 0.01), (0.5, 0.01), (0.17, 0.02))
    ),
    "veto": tuple(
        {"n": 90, "median": [2.0, 300.0], "head": around(*x), "ahead": around(0.9), "by_chance": 1e-4, "d_vocab": 9999}
        for x in ((0.8, 0.02), (0.3, 0.02), (0.5, 0.05))
    ),
    "zero agreement": tuple(
        {"active": [around(0.8), around(*x)], "all_memories": [around(0.5)]}
        for x in ((0.7, 0.01), (0.5, 0.01), (0.68, 0.02))
    ),
    "stop words": tuple(
        {"cases": 100, "stops": around(0.6, 0.05), "all_stops": around(*x)}
        for x in ((0.3, 0.02), (0.8, 0.02), (0.58, 0.02))
    ),
    "short prefixes": tuple(
        {"cases": 100, "shorts": around(0.43, 0.05), "all_shorts": around(*x)}
        for x in ((0.2, 0.02), (0.8, 0.02), (0.42, 0.02))
    ),
    "decided early": tuple({"decided": around(*x), "bottom": 4} for x in ((0.33, 0.02), (0.15, 0.02), (0.25, 0.02))),
    "fast growth": tuple(
        {"steep": around(0.08, 0.01), "flat": around(0.03), "growth": around(*x), "upper": 10}
        for x in ((0.02, 0.01), (-0.02, 0.01), (0.005, 0.01))
    ),
    "probability grows": (
        {"steps": [around(0.1, 0.01)] * 5, "rise": around(0.5, 0.02)},
        {"steps": [around(0.2, 0.01), around(-0.1, 0.01)], "rise": around(0.1, 0.02)},
        {"steps": [around(0.03, 0.01)] * 2, "rise": around(0.06, 0.02)},
    ),
    "follows the residual": tuple(
        {"alone": [around(0.7), around(*x)]} for x in ((0.8, 0.02), (0.008, 0.004), (0.9, 0.02))
    ),
    "compromise": tuple({"composed": around(*x)} for x in ((0.8, 0.05), (0.2, 0.05), (0.5, 0.05))),
    "distant compositions": tuple(
        {"related": around(*x), "n_pairs": 100} for x in ((0.34, 0.1), (0.9, 0.05), (0.2, 0.1))
    ),
}


def test_every_claim_has_made_up_numbers() -> None:
    assert set(CASES) == {quantity.name for quantity in QUANTITIES}
    assert len(CASES) == len(QUANTITIES) == 23, "two quantities of one name"
    for q in QUANTITIES:
        assert q.claim and q.where and q.what and q.published and q.test, q.name


@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda quantity: quantity.name)
def test_each_claim_can_agree_disagree_and_stay_open(quantity: Any) -> None:
    for numbers, verdict in zip(CASES[quantity.name], ("agrees", "differs", "inconclusive"), strict=True):
        found = quantity.judge(Numbers(**numbers))
        assert (found.verdict, found.here[-1]) == (verdict, "."), (quantity.name, found)


def test_too_few_agreeing_cases_are_not_judged() -> None:
    for quantity in (q for q in QUANTITIES if q.name in ("stop words", "short prefixes")):
        assert quantity.judge(Numbers(**CASES[quantity.name][0] | {"cases": 19})) is None


def test_agreement_in_the_papers_bins_is_that_of_a_loop() -> None:
    random = np.random.default_rng(0)
    probability = random.uniform(5e-5, 5e-4, 300)
    probability[0] = PAPER_BINS[0]
    target, top = random.integers(-1, 3, 300), random.integers(0, 3, 300)
    found = by_paper_bins(part_of(Agreement, probability=probability, target=target, top=top))
    ends = [0.0, *PAPER_BINS, 1.0]
    for n, rate in enumerate(found):
        rows = [i for i in range(300) if target[i] >= 0 and ends[n] <= probability[i] < ends[n + 1]]
        assert rate.n == len(rows) and rate.value == pytest.approx(np.mean(top[rows] == target[rows]))
    assert len(found) == 9 and sum(rate.n for rate in found) == (target >= 0).sum()


def test_the_ranks_of_a_new_token_are_those_of_a_loop() -> None:
    random = np.random.default_rng(0)
    names = ("output", "residual", "output_in_residual", "output_in_update")
    e = {name: random.integers(1, 40 if "_in_" in name else 4, (3, 50)) for name in names}
    lm = SimpleNamespace(d_vocab=1000)
    found = overturned(part_of(Measurements, examples=e, seed=0, lm=lm))
    changes = [(n, i) for n in range(3) for i in range(50) if e["output"][n, i] != e["residual"][n, i]]
    assert found is not None and found.n == len(changes) and found.by_chance == 0.01
    ranks = np.array([[e[name][at] for name in names[2:]] for at in changes])
    assert found.median == np.median(ranks, axis=0).tolist()
    assert found.head.value == pytest.approx(np.mean([rank <= 10 for rank, _ in ranks]))
    assert found.ahead.value == pytest.approx(np.mean([first < second for first, second in ranks]))
    few = {name: rows[:1, :20] for name, rows in e.items()}
    assert overturned(part_of(Measurements, examples=few, seed=0, lm=lm)) is None

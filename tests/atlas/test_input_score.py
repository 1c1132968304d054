"""The input score against counting every position, and every pair of a large drawn sample."""

from __future__ import annotations

import numpy as np
import pytest

from unembed.atlas.input_score import Firings, InputTest, area_under, least_hits

RNG = np.random.default_rng(5)


def _firings(index: int, at: np.ndarray) -> Firings:
    return Firings(index, at, np.ones(len(at)))


def test_the_accuracies_are_those_of_counting_positions() -> None:
    n = 400
    holds, inside = RNG.random(n) < 0.3, RNG.random(n) < 0.5
    controls = [_firings(i, RNG.permutation(n)[: RNG.integers(5, 40)]) for i in range(30)]
    own, random = _firings(3, RNG.permutation(n)[:80]), _firings(7, RNG.permutation(n)[:50])
    score = InputTest(inside, controls).score(holds, own, random)
    assert score is not None

    def accuracy(one: Firings) -> float:
        fires = np.isin(np.arange(n), one.at) & inside
        return float(holds[fires].mean() + (~holds)[inside & ~fires].mean()) / 2

    assert score.accuracy == pytest.approx(accuracy(own), abs=1e-12)
    # 29 are left without the memory itself, 28 without the other one: the 29th and the 28th of them.
    assert score.control == pytest.approx(max(accuracy(one) for one in controls if one.index != 3), abs=1e-12)
    bound = max(accuracy(one) for one in controls if one.index not in {3, 7})
    assert score.random_passes == (accuracy(random) > bound)
    assert score.firings == inside[own.at].sum()


def test_one_in_twenty_random_rules_passes_where_memories_fire_alike() -> None:
    """Memories of one population, some of which fire where the rule is true far more often than others."""
    n, passed = 4_000, 0
    share = RNG.beta(0.3, 2, 2_000)
    holds = np.arange(n) < n // 10
    population = [
        _firings(i, np.where(RNG.random(40) < p, RNG.integers(0, n // 10, 40), RNG.integers(n // 10, n, 40)))
        for i, p in enumerate(share)
    ]
    test = InputTest(np.ones(n, dtype=bool), population[:200])
    for random in population[200:]:
        score = test.score(holds, population[0], random)
        assert score is not None
        passed += bool(score.random_passes)
    assert passed / 1_800 < 0.09  # the bound is one draw of 199 controls: 5 % and three standard deviations


def test_the_area_is_the_share_of_ordered_pairs() -> None:
    at = RNG.random(25) < 0.7
    coefficients = RNG.integers(1, 9, 25).astype(float)
    base, copies = 0.2, 200
    quiet = np.arange(25 * copies) < base * 25 * copies  # as many other positions as firings, 200 times
    rule = np.concatenate([np.repeat(at, copies), quiet])
    size = np.concatenate([np.repeat(coefficients, copies), np.zeros(len(quiet))])
    true, false = size[rule], size[~rule]
    pairs = (true[:, None] > false).mean() + 0.5 * (true[:, None] == false).mean()
    assert area_under(at, coefficients, base) == pytest.approx(pairs, abs=1e-12)


def test_a_rule_that_is_true_everywhere_tells_nothing() -> None:
    assert area_under(np.ones(3, dtype=bool), np.ones(3), 1.0) == 0.5


def test_without_firings_there_is_no_score() -> None:
    empty = np.zeros(0, dtype=np.int64)
    assert InputTest(np.ones(4, bool), []).score(np.ones(4, bool), _firings(0, empty)) is None


def test_without_controls_nothing_passes() -> None:
    score = InputTest(np.ones(4, bool), []).score(np.arange(4) < 2, _firings(0, np.array([0, 1])))
    assert score is not None
    assert score.accuracy == 1
    assert not score.passes


def test_the_least_share_of_firings_counts_both_parts_and_every_document_alike() -> None:
    n = 600
    holds, document, part = RNG.random(n) < 0.7, np.arange(n) // 40, np.arange(n) // 40 % 3
    firings = _firings(0, RNG.permutation(n)[:200])
    expected = []
    for one in (0, 1):
        at = [p for p in firings.at if part[p] == one]
        expected.append(np.mean([holds[p] for p in at]))
        own = [[holds[p] for p in at if document[p] == d] for d in {document[p] for p in at}]
        expected.append(np.mean([np.mean(true) for true in own]))
    parts = [part == 0, part == 1]
    assert least_hits(holds, firings, document, parts) == pytest.approx(min(expected), abs=1e-12)
    repeated = _firings(
        0,
        np.r_[np.repeat(np.flatnonzero(holds & (document == 0))[:1], 90), np.flatnonzero(~holds & (document == 3))[:9]],
    )
    assert least_hits(holds, repeated, document, [part == 0]) == 0.5

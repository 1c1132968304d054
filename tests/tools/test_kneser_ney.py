"""The n-gram model against the formula written out with dictionaries."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from tools.kneser_ney import KneserNey

D_VOCAB = 7


def text(n: int, seed: int = 0) -> np.ndarray:
    """Tokens in which some n-grams are far more common than others; token 6 never occurs."""
    rng = np.random.default_rng(seed)
    line = [0, 1]
    for _ in range(n):
        line.append(int((line[-1] + line[-2] + (rng.random() < 0.3) * rng.integers(0, 6)) % 6))
    return np.array(line)


def by_the_formula(line: list[int], order: int, context: tuple[int, ...], token: int) -> float:
    """p(token | context) by recursion over dictionaries, counted afresh."""

    def counts(n: int) -> dict[tuple[int, ...], int]:
        grams = Counter(tuple(line[i : i + n]) for i in range(len(line) - n + 1))
        if n == order:
            return grams
        before = defaultdict(set)
        for i in range(len(line) - n):
            before[tuple(line[i + 1 : i + n + 1])].add(line[i])
        return {gram: len(before[gram]) for gram in grams}

    def probability(n: int) -> float:
        if n == 0:
            return 1 / D_VOCAB
        c, h = counts(n), context[len(context) - n + 1 :]
        n1, n2, n3, n4 = (sum(v == k for v in c.values()) for k in (1, 2, 3, 4))
        discount = {0: 0.0, 1: 0.5, 2: 0.5, 3: 0.5}
        if min(n1, n2, n3):
            y = n1 / (n1 + 2 * n2)
            raw = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
            discount |= {k: min(max(d, 0.05), k - 0.05) for k, d in enumerate(raw, start=1)}
        after = {gram[-1]: v for gram, v in c.items() if gram[:-1] == h}
        total = sum(after.values())
        if not total:
            return probability(n - 1)
        discounted = after.get(token, 0) - discount[min(after.get(token, 0), 3)]
        back = sum(discount[min(v, 3)] for v in after.values())
        return discounted / total + back / total * probability(n - 1)

    return probability(min(order, len(context) + 1))


@pytest.fixture(scope="module")
def model() -> KneserNey:
    return KneserNey.fit(text(400), order=3, d_vocab=D_VOCAB)


def test_probabilities_are_those_of_the_formula(model):
    held_back = text(40, seed=1)
    line = text(400).tolist()
    expected = [
        by_the_formula(line, 3, tuple(held_back[max(0, i - 2) : i].tolist()), int(t)) for i, t in enumerate(held_back)
    ]
    np.testing.assert_allclose(model.probabilities(held_back), expected, rtol=1e-12)


@pytest.mark.parametrize("context", [[], [3], [0, 1], [6, 6], [2, 6], [6, 2], [5, 4, 3, 2]])
def test_probabilities_after_any_context_sum_to_one(model, context):
    distribution = model.distribution(context)
    assert distribution.min() > 0
    assert distribution.sum() == pytest.approx(1, abs=1e-12)


def test_a_distribution_holds_the_probability_of_the_token_that_came(model):
    line = text(30, seed=2)
    expected = [model.distribution(line[max(0, i - 2) : i].tolist())[t] for i, t in enumerate(line)]
    np.testing.assert_allclose(model.probabilities(line), expected, rtol=1e-12)


def test_a_longer_context_predicts_this_text_better():
    held_back = text(2000, seed=3)
    bits = [
        -np.log2(KneserNey.fit(text(4000), order=n, d_vocab=D_VOCAB).probabilities(held_back)).mean() for n in (2, 3)
    ]
    assert bits[0] > bits[1] + 0.2

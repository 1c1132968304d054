"""Patterns of made prefixes: a token, a class, a word in the text, and none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from unembed.concepts.token_classes import Classes
from unembed.gallery.evidence import describe_pattern
from unembed.gallery.trigger_patterns import PatternFinder

WORDS = [" on", " the", " of", " court", " ran", " blue", " seven", " table"]
TOKENS = [*WORDS, *(f" {n}" for n in range(1, 32)), *(f" x{i}y" for i in range(61))]
ON, COURT = 0, 3
NUMBERS = np.arange(len(WORDS), len(WORDS) + 31)
NOISE = np.arange(len(WORDS) + 31, len(TOKENS))


@pytest.fixture(scope="module")
def finder() -> PatternFinder:
    rng = np.random.default_rng(0)
    text = np.concatenate([rng.choice(NOISE, 5000), rng.choice(NUMBERS, 300), np.repeat(np.arange(8), 20)])
    return PatternFinder(Classes.build(TOKENS), text)


def prefixes(*ends: list[int], n: int = 20) -> np.ndarray:
    rng = np.random.default_rng(1)
    rows = rng.choice(NOISE, (n, 12))
    for row, end in enumerate(ends):
        rows[row, 12 - len(end) :] = end
    return rows


def test_a_token_before_a_class_is_named_as_such(finder):
    rng = np.random.default_rng(2)
    found = finder.find(prefixes(*([ON, int(rng.choice(NUMBERS))] for _ in range(18))), TOKENS)
    assert found is not None
    assert describe_pattern(found) == "after 'on' + numbers"
    assert [(slot.offset, slot.is_token, slot.share) for slot in found.slots] == [(-1, True, 0.9), (0, False, 0.9)]
    assert found.p < 1e-6 and 0.85 < found.size < 0.95


def test_the_p_value_is_the_binomial_tail_times_what_could_have_been_named(finder):
    found = finder.find(prefixes(*([ON] for _ in range(15))), TOKENS)
    assert found is not None
    (slot,) = found.slots
    named = int((finder.frequency > 0).sum())
    assert slot.base == pytest.approx(20 / 5460)
    assert slot.p == pytest.approx(min(1.0, binom.sf(14, 20, 20 / 5460) * named))


def test_a_word_anywhere_in_the_prefixes_is_found(finder):
    rows = prefixes()
    rows[np.arange(20), np.random.default_rng(3).integers(0, 8, 20)] = COURT
    found = finder.find(rows, TOKENS)
    assert found is not None and found.slots == () and describe_pattern(found) == "in text with 'court'"


def test_prefixes_that_share_nothing_have_no_pattern(finder):
    assert finder.find(prefixes(), TOKENS) is None
    assert describe_pattern(None) is None


def test_what_is_common_everywhere_is_not_a_pattern():
    text = np.repeat([0, 1], [800, 200])
    finder = PatternFinder(Classes.build([" the", " cat"]), text)
    assert finder.find(np.zeros((20, 4), dtype=np.int64), [" the", " cat"]) is None

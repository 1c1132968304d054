"""The search finds rules that were planted, and nothing that holds on new text where nothing was planted."""

from __future__ import annotations

import numpy as np
import pytest

from tests.atlas.test_rules import ID, WORDS
from unembed.atlas.input_score import Firings, InputTest
from unembed.atlas.rules import AllOf, BeginningAt, ClassAt, Place, Rule, TokenAt, read_rule, to_dict
from unembed.atlas.search import RuleSearch
from unembed.atlas.text import RuleText
from unembed.concepts.token_classes import Classes

N = 12_000


@pytest.fixture(scope="module")
def text() -> RuleText:
    rng = np.random.default_rng(0)
    share = np.full(len(WORDS), 1.0)
    share[[ID[" from"], ID[" January"], ID[" May"], ID[" 1997"]]] = 0.3
    tokens = rng.choice(len(WORDS), N, p=share / share.sum())
    return RuleText.of(tokens, np.arange(0, N, 30), WORDS, Classes.build(WORDS))


@pytest.fixture(scope="module")
def search(text: RuleText) -> RuleSearch:
    return RuleSearch(text, np.arange(N) < N // 2)


PLANTED: list[Rule] = [
    TokenAt(0, (ID[" from"],)),
    TokenAt(1, (ID[" January"], ID[" May"])),
    TokenAt(2, (ID[" 1997"],)),
    Place("in brackets"),
    Place("late in a sentence"),
    Place("in German"),
    AllOf((TokenAt(0, (ID[" the"],)), Place("in brackets"))),
]


@pytest.mark.parametrize("planted", PLANTED, ids=[one.words(WORDS) for one in PLANTED])
def test_a_planted_rule_is_found(text: RuleText, search: RuleSearch, planted: Rule) -> None:
    holds = planted.holds(text)
    firings = np.random.default_rng(1).permutation(np.flatnonzero(holds[: N // 2]))[:60]
    found = search.find(firings)
    assert found is not None
    marked = found.rule.holds(text)
    # Another rule may mark the same positions in other words.
    assert (marked & holds).sum() > 0.9 * (marked | holds).sum(), found.rule.words(WORDS)
    expected = (holds[firings].mean() + 1 - holds[: N // 2].mean()) / 2
    assert found.accuracy == pytest.approx(expected, abs=0.02)


def test_a_class_is_found_where_more_tokens_share_it_than_a_list_holds() -> None:
    words = tuple(f" {number}" for number in (*range(1900, 1960), *range(300)))
    tokens = np.random.default_rng(0).integers(0, len(words), N)
    text = RuleText.of(tokens, np.arange(0, N, 30), words, Classes.build(words))
    firings = np.random.default_rng(1).permutation(np.flatnonzero(tokens < 60))[:60]
    found = RuleSearch(text, np.ones(N, dtype=bool)).find(firings)
    assert found is not None
    assert found.rule == ClassAt(0, "years")


def test_a_beginning_is_found_where_more_words_have_it_than_a_list_holds() -> None:
    stems = [a + b for a in "bdfgklmnprst" for b in ("ano", "elt", "ixu", "orm")]
    words = tuple(f" {start}{stem}" for start in ("mis", "") for stem in stems)
    tokens = np.random.default_rng(0).integers(0, len(words), N)
    text = RuleText.of(tokens, np.arange(0, N, 30), words, Classes.build(words))
    firings = np.random.default_rng(1).permutation(np.flatnonzero(tokens < len(stems)))[:60]
    found = RuleSearch(text, np.ones(N, dtype=bool)).find(firings)
    assert found is not None
    assert found.rule in (BeginningAt(0, "mi"), BeginningAt(0, "mis"))
    assert read_rule(to_dict(found.rule)) == found.rule


def test_rules_for_random_positions_pass_the_control_as_often_as_chance_says(
    text: RuleText, search: RuleSearch
) -> None:
    rng = np.random.default_rng(2)
    held_out = np.arange(N) >= N // 2
    test = InputTest(held_out, [Firings(i, rng.integers(N // 2, N, 30), np.ones(30)) for i in range(200)])
    passed = tried = 0
    for _ in range(300):
        found = search.find(rng.integers(0, N // 2, 60))
        if found is None:
            continue
        firings = rng.integers(N // 2, N, 30)
        score = test.score(found.rule.holds(text), Firings(-1, firings, np.ones(30)))
        assert score is not None
        tried += 1
        passed += score.passes
    assert tried > 200
    assert passed / tried < 0.09  # 5 % and three standard deviations of 300 draws


def test_too_few_firings_have_no_rule(search: RuleSearch) -> None:
    assert search.find(np.arange(7)) is None

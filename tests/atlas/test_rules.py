"""Rules mark the positions that their words describe: against a loop over the prefixes of every position."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from unembed.atlas.rules import AllOf, BeginningAt, ClassAt, EndingAt, Near, Place, Rule, TokenAt, read_rule, to_dict
from unembed.atlas.text import NEAR, RuleText
from unembed.concepts.token_classes import Classes
from unembed.errors import InvalidInput

WORDS = (" from", " to", " the", " 1997", " walking", " talking", " dog", '"', " (", ")", ".", "\n", " January", " May")
WORDS += (" 1998", " 2001", " 1850", " der", " und")
YEARS = (" 1997", " 1998", " 2001", " 1850")
ID = {word: number for number, word in enumerate(WORDS)}


def text_of(*passages: Sequence[str]) -> RuleText:
    starts = np.cumsum([0, *map(len, passages[:-1])])
    tokens = np.array([ID[word] for passage in passages for word in passage])
    return RuleText.of(tokens, starts, WORDS, Classes.build(WORDS))


@pytest.fixture(scope="module")
def text() -> RuleText:
    rng = np.random.default_rng(3)
    return text_of(*([WORDS[i] for i in rng.integers(0, len(WORDS), n)] for n in (1, 7, 60, 45, 2)))


def prefixes(text: RuleText) -> list[list[str]]:
    return [[WORDS[t] for t in text.token[text.start[i] : i + 1]] for i in range(len(text))]


def last_is(*words: str, offset: int = 0) -> Callable[[list[str]], bool]:
    return lambda prefix: len(prefix) > offset and prefix[-1 - offset] in words


def brackets(prefix: list[str]) -> bool:
    depth = 0
    for word in prefix:
        depth = max(0, depth + word.count("(") - word.count(")"))
    return depth > 0


def since_start(prefix: list[str]) -> int:
    """Count the tokens since the sentence's first one: the last token that follows an end and is none itself."""
    ends = [word in (".", "\n") for word in prefix]
    starts = [i for i in range(len(prefix)) if not ends[i] and (i == 0 or ends[i - 1])]
    return len(prefix) - 1 - (starts[-1] if starts else 0)


RULES: list[tuple[Rule, Callable[[list[str]], bool], str]] = [
    (TokenAt(0, (0, 1)), last_is(" from", " to"), "after 'from', 'to'"),
    (TokenAt(2, (0,)), last_is(" from", offset=2), "after 'from' + any token + any token"),
    (ClassAt(0, "years"), last_is(*YEARS), "after years"),
    (EndingAt(1, "king"), last_is(" walking", " talking", offset=1), "after a word in -king + any token"),
    (BeginningAt(0, "wal"), last_is(" walking"), "after a word in wal-"),
    (Place("near the start of a sentence"), lambda p: since_start(p) < 5, "near the start of a sentence"),
    (Place("late in a sentence"), lambda p: since_start(p) >= 20, "late in a sentence"),
    (Place("in German"), lambda p: sum(word in (" der", " und") for word in p[-32:]) >= 4, "in German"),
    (Near((6,)), lambda prefix: " dog" in prefix[-NEAR:], "shortly after 'dog'"),
    (Place("in quotation marks"), lambda prefix: prefix.count('"') % 2 == 1, "in quotation marks"),
    (Place("in brackets"), brackets, "in brackets"),
    (Place("seen before"), lambda p: p[-1] in p[:-1], "after a token of the passage that occurred before"),
    (
        Place("pair seen before"),
        lambda p: any(p[i : i + 2] == p[-2:] for i in range(len(p) - 2)) and len(p) > 1,
        "after a pair of tokens that occurred before",
    ),
    (
        AllOf((TokenAt(1, (0,)), ClassAt(0, "years"))),
        lambda p: last_is(*YEARS)(p) and last_is(" from", offset=1)(p),
        "after 'from' + years",
    ),
    (
        AllOf((TokenAt(0, (2,)), Place("in brackets"))),
        lambda p: p[-1] == " the" and brackets(p),
        "after 'the', in brackets",
    ),
]


@pytest.mark.parametrize(("rule", "expected", "words"), RULES, ids=[words for _, _, words in RULES])
def test_a_rule_marks_what_its_words_say(
    text: RuleText, rule: Rule, expected: Callable[[list[str]], bool], words: str
) -> None:
    marked = rule.holds(text).tolist()
    assert marked == [expected(prefix) for prefix in prefixes(text)]
    assert any(marked)
    assert not all(marked)
    assert rule.words(WORDS) == words
    assert read_rule(to_dict(rule)) == rule


def test_a_sentence_starts_after_the_end_of_another_one() -> None:
    text = text_of([" The".lower(), " dog", ".", " May", " to", "\n", "\n", " dog"], [" May", " from"])
    assert Place("at the start of a sentence").holds(text).tolist() == [
        *(True, False, False, True, False, False, False, True),
        *(True, False),
    ]


def test_code_is_where_marks_of_code_are_dense() -> None:
    code = [" the", " (", " (", " dog", " ("]
    text = text_of([" the"] * 40, code, [" from"] * 40 + code * 4)
    holds = Place("in code").holds(text)
    assert not holds[:41].any()
    assert holds[42:45].all()
    assert not holds[45:85].any()
    assert holds[-1]


PASSAGES = {
    "in French": "la ville est dans le nord de la France et les habitants y vivent avec une joie que nous avons vue",
    "in Spanish": "la casa de los padres es una de las del norte y el perro que vive en ella se fue por la puerta",
    "in German": "das Haus und der Garten sind auf dem Berg mit einem Weg, den wir nicht kennen, ist es der von Karl",
    None: "the house of the parents is one of those in the north and the dog that lives in it left by the door",
}


@pytest.mark.parametrize("language", ["in French", "in Spanish", "in German"])
def test_a_language_is_where_several_of_its_frequent_words_are(language: str) -> None:
    passages = [[f" {word}" for word in passage.split()] for passage in PASSAGES.values()]
    words = tuple(dict.fromkeys(word for passage in passages for word in passage))
    starts = np.cumsum([0, *map(len, passages[:-1])])
    tokens = np.array([words.index(word) for passage in passages for word in passage])
    holds = Place(language).holds(RuleText.of(tokens, starts, words, Classes.build(words)))
    for name, start, passage in zip(PASSAGES, starts, passages, strict=True):
        assert holds[start + len(passage) - 1] == (name == language)
        assert not holds[start]


def test_a_stored_rule_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a rule in an atlas"):
        read_rule({"kind": "token", "offsets": 1})

"""Executable rules about the text up to a position: the input side of a description.

Each rule is a frozen dataclass. `holds` marks the positions of a text at which the rule is true, `words` writes the
rule in English, and `to_dict` and `read_rule` convert it to and from JSON.

| rule | is true where |
|---|---|
| `TokenAt` | the token at an offset from the end is one of a list |
| `ClassAt` | the token at an offset is in a class: a part of speech, a meaning, forms of a word, numbers ... |
| `EndingAt` | the token at an offset is a word that ends in these letters |
| `BeginningAt` | the token at an offset is a word that begins with these letters |
| `Near` | one of a list of words is among the last `NEAR` tokens |
| `Place` | the position is in quotation marks, in code, in German, late in a sentence ..., see `text.PLACES` |
| `AllOf` | each of several rules is true |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int

from unembed.atlas.text import PLACES, RuleText
from unembed.concepts.token_classes import Classes
from unembed.errors import InvalidInput

_SHOWN = 8
_UNSEEN = {" ": "a space", "\n": "a line break", "\n\n": "an empty line", "\t": "a tab"}
_ANY = "any token"
_FORMS = {"capitalised": "a capitalised word", "all capitals": "a word in capitals", "punctuation": "punctuation"}


@runtime_checkable
class Rule(Protocol):
    """A predicate on the text before a position."""

    def holds(self, text: RuleText) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at which the rule is true."""
        ...

    def words(self, strings: Sequence[str]) -> str:
        """Write the rule in English."""
        ...


def quoted_tokens(tokens: Sequence[int], strings: Sequence[str], shown: int = _SHOWN) -> str:
    """Write a list of up to `shown` tokens in quotation marks, without surrounding spaces and duplicates."""
    texts = list(dict.fromkeys(strings[token].strip(" ") or strings[token] for token in tokens))
    named = ", ".join(_UNSEEN.get(text) or f"'{_escaped(text)}'" for text in texts[:shown])
    return f"{named} ..." if len(texts) > shown else named


def _escaped(text: str) -> str:
    return text.replace("\n", "\\n").replace("\t", "\\t")


@dataclass(frozen=True)
class TokenAt:
    """Rule: the token at an offset is one of `tokens`. Offset 0 is the token at the position, 1 the one before it."""

    offset: int
    tokens: tuple[int, ...]

    def holds(self, text: RuleText) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at which the rule is true."""
        return text.after(self.tokens, self.offset)

    def words(self, strings: Sequence[str]) -> str:
        """Write the rule in English."""
        return _after({self.offset: self.token_in_words(strings)})

    def token_in_words(self, strings: Sequence[str]) -> str:
        """Describe the token in English."""
        return quoted_tokens(self.tokens, strings)


@dataclass(frozen=True)
class ClassAt:
    """Rule: the token at an offset is in the class `name` (see `concepts.token_classes`).

    If `is_meaning`, the class contains the words below a WordNet synset, such as "month" for the names of months.
    """

    offset: int
    name: str
    is_meaning: bool = False

    def holds(self, text: RuleText) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at which the rule is true."""
        return text.has(class_members(text.classes, self.name), self.offset)

    def words(self, strings: Sequence[str]) -> str:
        """Write the rule in English."""
        return _after({self.offset: self.token_in_words(strings)})

    def token_in_words(self, strings: Sequence[str]) -> str:
        """Describe the token in English."""
        return f"a word of the class '{self.name}'" if self.is_meaning else _FORMS.get(self.name, self.name)


@dataclass(frozen=True)
class EndingAt:
    """Rule: the token at an offset is a word that ends in the letters `ending`."""

    offset: int
    ending: str

    def holds(self, text: RuleText) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at which the rule is true."""
        return text.has(text.ending_in(self.ending), self.offset)

    def words(self, strings: Sequence[str]) -> str:
        """Write the rule in English."""
        return _after({self.offset: self.token_in_words(strings)})

    def token_in_words(self, strings: Sequence[str]) -> str:
        """Describe the token in English."""
        return f"a word in -{self.ending}"


@dataclass(frozen=True)
class BeginningAt:
    """Rule: the token at an offset is a word that begins with the letters `beginning`."""

    offset: int
    beginning: str

    def holds(self, text: RuleText) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at which the rule is true."""
        return text.has(text.beginning_with(self.beginning), self.offset)

    def words(self, strings: Sequence[str]) -> str:
        """Write the rule in English."""
        return _after({self.offset: self.token_in_words(strings)})

    def token_in_words(self, strings: Sequence[str]) -> str:
        """Describe the token in English."""
        return f"a word in {self.beginning}-"


@dataclass(frozen=True)
class Near:
    """Rule: one of `tokens` is among the last `text.NEAR` tokens."""

    tokens: tuple[int, ...]

    def holds(self, text: RuleText) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at which the rule is true."""
        return text.recent(self.tokens)

    def words(self, strings: Sequence[str]) -> str:
        """Write the rule in English."""
        return f"shortly after {quoted_tokens(self.tokens, strings)}"


@dataclass(frozen=True)
class Place:
    """Rule: the position has the property `name`, which is one of `text.PLACES`."""

    name: str

    def holds(self, text: RuleText) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at which the rule is true."""
        return text.places[:, PLACES.index(self.name)]

    def words(self, strings: Sequence[str]) -> str:
        """Write the rule in English."""
        repeats = {"seen before": "after a token of the passage that occurred before"}
        repeats["pair seen before"] = "after a pair of tokens that occurred before"
        return repeats.get(self.name, self.name)


@dataclass(frozen=True)
class AllOf:
    """Rule: all of `rules` are true."""

    rules: tuple[Rule, ...]

    def holds(self, text: RuleText) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at which the rule is true."""
        return np.logical_and.reduce([rule.holds(text) for rule in self.rules])

    def words(self, strings: Sequence[str]) -> str:
        """Write the rule in English."""
        at = [rule for rule in self.rules if isinstance(rule, TokenAt | ClassAt | EndingAt | BeginningAt)]
        tokens = {rule.offset: rule.token_in_words(strings) for rule in at}
        rest = [rule.words(strings) for rule in self.rules if rule not in at]
        return ", ".join([*([_after(tokens)] if tokens else []), *rest])


def _after(tokens: Mapping[int, str]) -> str:
    """Write "after ..." with the descriptions of the last tokens in text order; `tokens` gives them by offset."""
    return "after " + " + ".join(tokens.get(offset, _ANY) for offset in range(max(tokens), -1, -1))


def examples(rule: Rule, text: RuleText, at: Int[np.ndarray, " firing"], shown: int = 4) -> tuple[int, ...]:
    """Return the tokens that most often make a rule about a class, ending or beginning true at the positions `at`.

    The most frequent token is first.

    The result is empty if the rule has no class, ending or beginning.
    """
    parts = rule.rules if isinstance(rule, AllOf) else (rule,)
    if (part := next((one for one in parts if isinstance(one, ClassAt | EndingAt | BeginningAt)), None)) is None:
        return ()
    seen = text.back[part.offset][at[rule.holds(text)[at]]]
    found, counts = np.unique(seen, return_counts=True)
    texts = {text.strings[t].strip(): t for t in found[np.argsort(counts, kind="stable")].tolist()}
    return tuple(reversed(list(texts.values())[-shown:]))


KINDS = {
    "token": TokenAt, "class": ClassAt, "ending": EndingAt, "beginning": BeginningAt, "near": Near, "place": Place,
    "all": AllOf,
}  # fmt: skip
"""Every kind of rule by the name under which it is stored."""
_NAMES = {kind: name for name, kind in KINDS.items()}


def to_dict(rule: Rule) -> dict[str, Any]:
    """Return a rule as a dict that can be written as JSON."""
    if isinstance(rule, AllOf):
        return {"kind": "all", "rules": [to_dict(one) for one in rule.rules]}
    return {"kind": _NAMES[type(rule)], **asdict(rule)}  # pyright: ignore[reportArgumentType]


def read_rule(stored: Mapping[str, Any]) -> Rule:
    """Build a rule from what `to_dict` returned.

    Raises:
        InvalidInput: the dict is not a stored rule.
    """
    try:
        values = {name: value for name, value in stored.items() if name != "kind"}
        if stored["kind"] == "all":
            return AllOf(tuple(read_rule(one) for one in values["rules"]))
        if "tokens" in values:
            values["tokens"] = tuple(values["tokens"])
        return KINDS[stored["kind"]](**values)
    except (KeyError, TypeError) as error:
        raise InvalidInput("a rule in an atlas", why=f"it cannot be read: {error}") from error


@lru_cache(maxsize=512)
def class_members(classes: Classes, name: str) -> Bool[np.ndarray, " vocab"]:
    """Mark the tokens of a vocabulary that are in the class `name`; none if there is no such class."""
    numbers = [i for i, one in enumerate(classes.names) if one == name]
    tokens = np.repeat(np.arange(len(classes.tokens)), np.diff(classes.starts))
    found = np.zeros(len(classes.tokens), dtype=bool)
    found[tokens[np.isin(classes.classes, numbers)]] = True
    return found

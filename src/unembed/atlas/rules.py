"""Rules about the text before a position, which can be run: the input side of a description.

Each rule is a frozen dataclass. `holds` marks the positions of a text at which the rule is true, `words` writes it as a
person reads it, and `to_dict` and `read_rule` store it as JSON.

| rule | is true where |
|---|---|
| `TokenAt` | the last token, or the one before it, is one of a list |
| `ClassAt` | that token is in a class of tokens: a part of speech, a meaning, forms of a word, numbers ... |
| `EndingAt` | that token's word ends in these letters |
| `Near` | one of a list of words is among the last `NEAR` tokens |
| `Place` | the position is in quotation marks, in brackets, in code ..., see `text.PLACES` |
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
        """Write the rule as a person reads it."""
        ...


def quoted(tokens: Sequence[int], strings: Sequence[str], shown: int = _SHOWN) -> str:
    """Quote up to `shown` of the tokens, without surrounding spaces and without duplicates."""
    texts = list(dict.fromkeys(strings[token].strip(" ") or strings[token] for token in tokens))
    named = ", ".join(_UNSEEN.get(text) or f"'{_escaped(text)}'" for text in texts[:shown])
    return f"{named} ..." if len(texts) > shown else named


def _escaped(text: str) -> str:
    return text.replace("\n", "\\n").replace("\t", "\\t")


@dataclass(frozen=True)
class TokenAt:
    """One of these tokens stands at an offset: 0 is the last token of the prefix, 1 the one before it."""

    offset: int
    tokens: tuple[int, ...]

    def holds(self, text: RuleText) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at which the rule is true."""
        return text.after(self.tokens, self.offset)

    def words(self, strings: Sequence[str]) -> str:
        """Write the rule as a person reads it."""
        return _after({self.offset: self.token_in_words(strings)})

    def token_in_words(self, strings: Sequence[str]) -> str:
        """Write which token it is."""
        return quoted(self.tokens, strings)


@dataclass(frozen=True)
class ClassAt:
    """A token of this class (`concepts.token_classes`) stands at an offset.

    A class of meaning contains the words that WordNet has below a synset: "month" is the class of the months.
    """

    offset: int
    name: str
    is_meaning: bool = False

    def holds(self, text: RuleText) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at which the rule is true."""
        return text.has(class_members(text.classes, self.name), self.offset)

    def words(self, strings: Sequence[str]) -> str:
        """Write the rule as a person reads it."""
        return _after({self.offset: self.token_in_words(strings)})

    def token_in_words(self, strings: Sequence[str]) -> str:
        """Write which token it is."""
        return f"a word of the class '{self.name}'" if self.is_meaning else _FORMS.get(self.name, self.name)


@dataclass(frozen=True)
class EndingAt:
    """A token whose word ends in these letters stands at an offset."""

    offset: int
    ending: str

    def holds(self, text: RuleText) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at which the rule is true."""
        return text.has(text.ending_in(self.ending), self.offset)

    def words(self, strings: Sequence[str]) -> str:
        """Write the rule as a person reads it."""
        return _after({self.offset: self.token_in_words(strings)})

    def token_in_words(self, strings: Sequence[str]) -> str:
        """Write which token it is."""
        return f"a word in -{self.ending}"


@dataclass(frozen=True)
class Near:
    """One of these words is among the last tokens of the prefix (`text.NEAR`)."""

    tokens: tuple[int, ...]

    def holds(self, text: RuleText) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at which the rule is true."""
        return text.recent(self.tokens)

    def words(self, strings: Sequence[str]) -> str:
        """Write the rule as a person reads it."""
        return f"shortly after {quoted(self.tokens, strings)}"


@dataclass(frozen=True)
class Place:
    """The position has one of the properties `text.PLACES`."""

    name: str

    def holds(self, text: RuleText) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at which the rule is true."""
        return text.places[:, PLACES.index(self.name)]

    def words(self, strings: Sequence[str]) -> str:
        """Write the rule as a person reads it."""
        repeats = {"seen before": "after a token of the passage that occurred before"}
        repeats["pair seen before"] = "after a pair of tokens that occurred before"
        return repeats.get(self.name, self.name)


@dataclass(frozen=True)
class AllOf:
    """Each of these rules is true."""

    rules: tuple[Rule, ...]

    def holds(self, text: RuleText) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at which the rule is true."""
        return np.logical_and.reduce([rule.holds(text) for rule in self.rules])

    def words(self, strings: Sequence[str]) -> str:
        """Write the rule as a person reads it."""
        at = [rule for rule in self.rules if isinstance(rule, TokenAt | ClassAt | EndingAt)]
        tokens = {rule.offset: rule.token_in_words(strings) for rule in at}
        rest = [rule.words(strings) for rule in self.rules if rule not in at]
        return ", ".join([*([_after(tokens)] if tokens else []), *rest])


def _after(tokens: Mapping[int, str]) -> str:
    """Write which tokens the prefix ends with, in the order of the text, by their offsets."""
    return "after " + " + ".join(tokens.get(offset, _ANY) for offset in range(max(tokens), -1, -1))


def examples(rule: Rule, text: RuleText, at: Int[np.ndarray, " firing"], shown: int = 4) -> tuple[int, ...]:
    """Return the most frequent tokens that a rule's class or ending stands for, of the positions `at` where it is true.

    Empty for a rule with neither.
    """
    parts = rule.rules if isinstance(rule, AllOf) else (rule,)
    if (part := next((one for one in parts if isinstance(one, ClassAt | EndingAt)), None)) is None:
        return ()
    seen = text.back[part.offset][at[rule.holds(text)[at]]]
    found, counts = np.unique(seen, return_counts=True)
    texts = {text.strings[t].strip(): int(t) for t in found[np.argsort(counts, kind="stable")]}
    return tuple(reversed(list(texts.values())[-shown:]))


KINDS = {
    "token": TokenAt, "class": ClassAt, "ending": EndingAt, "near": Near, "place": Place, "all": AllOf,
}  # fmt: skip
"""Every kind of rule by the name under which it is stored."""
_NAMES = {kind: name for name, kind in KINDS.items()}


def to_dict(rule: Rule) -> dict[str, Any]:
    """Return a rule as JSON values."""
    if isinstance(rule, AllOf):
        return {"kind": "all", "rules": [to_dict(one) for one in rule.rules]}
    return {"kind": _NAMES[type(rule)], **asdict(rule)}  # pyright: ignore[reportArgumentType]


def read_rule(stored: Mapping[str, Any]) -> Rule:
    """Build a rule from what `to_dict` returned.

    Raises:
        InvalidInput: it is no rule.
    """
    try:
        values = {name: value for name, value in stored.items() if name != "kind"}
        if stored["kind"] == "all":
            return AllOf(tuple(read_rule(one) for one in values["rules"]))
        if "tokens" in values:
            values["tokens"] = tuple(values["tokens"])
        return KINDS[stored["kind"]](**values)
    except (KeyError, TypeError) as error:
        raise InvalidInput("a stored rule", why=f"it cannot be read: {error}") from error


@lru_cache(maxsize=512)
def class_members(classes: Classes, name: str) -> Bool[np.ndarray, " vocab"]:
    """Mark the tokens of a vocabulary that are in a class; none where no class has this name."""
    numbers = [i for i, one in enumerate(classes.names) if one == name]
    tokens = np.repeat(np.arange(len(classes.tokens)), np.diff(classes.starts))
    found = np.zeros(len(classes.tokens), dtype=bool)
    found[tokens[np.isin(classes.classes, numbers)]] = True
    return found

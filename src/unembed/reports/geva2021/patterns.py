"""Find patterns in a key's triggers by rules: features that at least three prefixes share, more often than by chance.

- shallow: the last one, two or three tokens; or two to four tokens in a row anywhere in the prefix;
- semantic: a WordNet class, or optionally a group of neighbours in the token embedding, with at least two different
  tokens from the ends of the prefixes.

A pattern counts if as many random prefixes of the corpus would share it with a probability of at most `CHANCE`. Of
several patterns in nearly the same prefixes, only the most significant is reported. In the paper people found the
patterns, so shares found by rules can be compared between layers and with random prefixes, but not with the paper.

Source: Geva et al. 2021, section 3 and Fig. 2 (patterns in three or more of 25 prefixes, shallow or semantic).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import comb

import numpy as np
from jaxtyping import Bool, Int

from unembed.concepts.token_classes import Classes

FEWEST = 3
"""Smallest number of prefixes that must share a pattern."""
CHANCE = 1e-3
"""A pattern counts if at least as many random prefixes would share it with at most this probability.

For classes of tokens, this threshold is divided by the number of classes that were tested.
"""
SAME = 0.6
"""Two patterns of one kind count as the same if the intersection over union of their prefixes is larger than this."""
SEEN = 32
"""Number of tokens at the end of a prefix that are checked for classes."""
REFERENCE = 2000
"""Number of random prefixes from which the frequency of features is estimated."""

Prefix = Int[np.ndarray, " _"]
Feature = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Pattern:
    """A pattern shared by some of the prefixes."""

    kind: str
    """"shallow" or "semantic"."""
    what: str
    """"ends with", "contains" or "class"."""
    tokens: tuple[int, ...]
    """Ids of the shared tokens; for a class, a tuple with the index of the class."""
    members: frozenset[int]
    """Indices of the prefixes that have the pattern."""
    chance: float
    """Probability that at least as many random prefixes have the pattern."""


def surface(prefix: Prefix) -> set[Feature]:
    """Return the shallow features of a prefix: its last one to three tokens, and the n-grams (2 to 4) in it."""
    ids = prefix.tolist()
    found: set[Feature] = {("ends with", tuple(ids[-n:])) for n in (1, 2, 3) if len(ids) >= n}
    for n in (2, 3, 4):
        found |= {("contains", tuple(ids[i : i + n])) for i in range(len(ids) - n + 1)}
    return found


def meanings(prefix: Prefix, classes: Classes, kinds: Sequence[str]) -> dict[Feature, set[int]]:
    """Return the classes of the last tokens of a prefix, each with the set of these tokens that belong to it."""
    found: dict[Feature, set[int]] = defaultdict(set)
    for token in dict.fromkeys(prefix[-SEEN:].tolist()):
        for number in classes.of(token).tolist():
            if classes.kinds[number] in kinds:
                found["class", (number,)].add(token)
    return found


@dataclass(frozen=True, eq=False)
class Finder:
    """Finds patterns in sets of prefixes, given how common each feature is in random prefixes (`rates`)."""

    classes: Classes | None
    kinds: tuple[str, ...]
    rates: dict[Feature, float]
    n_reference: int

    @classmethod
    def of(cls, reference: Sequence[Prefix], classes: Classes | None, kinds: Sequence[str]) -> Finder:
        """Return a finder, given random prefixes and classes of tokens; no semantic patterns if `classes` is None."""
        counts: dict[Feature, int] = defaultdict(int)
        for prefix in reference:
            for feature in surface(prefix):
                counts[feature] += 1
            if classes is not None:
                for feature in meanings(prefix, classes, kinds):
                    counts[feature] += 1
        n = len(reference)
        return cls(classes, tuple(kinds), {f: (c + 1) / (n + 1) for f, c in counts.items() if c > 0}, n)

    def rate(self, feature: Feature) -> float:
        """Return the probability that a random prefix has the feature, with one count added so that it is never 0."""
        return self.rates.get(feature, 1 / (self.n_reference + 1))

    def patterns(self, prefixes: Sequence[Prefix]) -> list[Pattern]:
        """Return the shallow and then the semantic patterns of a key's triggers, each most significant first."""
        shallow = self._distinct("shallow", _holders(map(surface, prefixes)), len(prefixes), CHANCE)
        if self.classes is None:
            return shallow
        words = [meanings(prefix, self.classes, self.kinds) for prefix in prefixes]
        holders = _holders(words)
        tried = sum(len(members) >= FEWEST for members in holders.values())
        several = {
            feature: members
            for feature, members in holders.items()
            if len(set().union(*(words[i][feature] for i in members))) >= 2
        }
        semantic = self._distinct("semantic", several, len(prefixes), CHANCE / max(tried, 1))
        return shallow + [p for p in semantic if self._by_other_words(p, words, shallow)]

    def _by_other_words(
        self, pattern: Pattern, words: Sequence[dict[Feature, set[int]]], shallow: Sequence[Pattern]
    ) -> bool:
        """Tell whether a semantic pattern has at least two tokens that are not already in a shallow pattern."""
        counts: dict[int, int] = defaultdict(int)
        for i in pattern.members:
            for token in words[i][pattern.what, pattern.tokens]:
                counts[token] += 1
        shared = {token for p in shallow for token in p.tokens}
        return sum(token not in shared for token in counts) >= 2

    def _distinct(self, kind: str, holders: dict[Feature, frozenset[int]], n: int, most: float) -> list[Pattern]:
        found = []
        for (what, tokens), members in holders.items():
            if len(members) >= FEWEST:
                chance = tail(n, self.rate((what, tokens)), len(members))
                if chance <= most:
                    found.append(Pattern(kind, what, tokens, members, chance))
        found.sort(key=lambda p: (p.chance, p.what != "ends with", -len(p.tokens), p.tokens))
        distinct: list[Pattern] = []
        for pattern in found:
            if not any(len(pattern.members & k.members) > SAME * len(pattern.members | k.members) for k in distinct):
                distinct.append(pattern)
        return distinct


def _holders(found: Iterable[Iterable[Feature]]) -> dict[Feature, frozenset[int]]:
    holders: dict[Feature, set[int]] = defaultdict(set)
    for i, features in enumerate(found):
        for feature in features:
            holders[feature].add(i)
    return {feature: frozenset(members) for feature, members in holders.items()}


@cache
def tail(n: int, p: float, k: int) -> float:
    """Return the probability of at least k successes in n independent trials with success probability p."""
    return float(sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1)))


def covered(patterns: Iterable[Pattern], n: int, kind: str) -> Bool[np.ndarray, " n"]:
    """Return a mask of the n prefixes that have a pattern of this kind ("shallow" or "semantic")."""
    found = np.zeros(n, bool)
    for pattern in patterns:
        if pattern.kind == kind:
            found[list(pattern.members)] = True
    return found


def described(pattern: Pattern, classes: Classes | None, strings: Callable[[Sequence[int]], list[str]]) -> str:
    """Return the pattern in words, such as: ends with “of the”."""
    if pattern.what == "class":
        assert classes is not None
        return f"{classes.names[pattern.tokens[0]]} ({classes.evidence[pattern.tokens[0]]})"
    return f"{pattern.what} “{''.join(strings(pattern.tokens)).strip()}”"


def shares(patterns: Sequence[Pattern], n: int) -> Iterator[tuple[str, float]]:
    """Yield the shares of n prefixes with shallow patterns only, both kinds, semantic ones only, and none (Fig. 2)."""
    shallow, semantic = covered(patterns, n, "shallow"), covered(patterns, n, "semantic")
    for name, chosen in (
        ("shallow", shallow & ~semantic),
        ("both", shallow & semantic),
        ("semantic", semantic & ~shallow),
        ("none", ~(shallow | semantic)),
    ):
        yield name, float(chosen.mean()) if n else float("nan")

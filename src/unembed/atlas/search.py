"""Find the rule that best separates the positions where a memory (FFN neuron) fires from the rest of a text.

Rules are compared by balanced accuracy: the mean of the share of firings at which a rule is true and the share of other
positions at which it is false. Lists of tokens grow greedily: a token is added if its share of the firings exceeds its
share of the text. A longer rule must be better by `COST` for each further token or part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from unembed.atlas.rules import AllOf, BeginningAt, ClassAt, EndingAt, Near, Place, Rule, TokenAt
from unembed.atlas.text import NEAR, OFFSETS, PLACES, RuleText
from unembed.concepts.word_lists import STOP_WORDS

FEWEST = 8
"""Smallest number of firings for which a rule is searched."""
MOST_TOKENS = 8
COST = 0.005
"""What each further token of a list, or each further part of a rule, must add to the balanced accuracy."""
ENDINGS, BEGINNINGS = (2, 3, 4), (2, 3, 4)
"""Numbers of letters of an ending or a beginning."""
_SHARE, _SEEN_TWICE = 0.04, 2
_COMMON = 0.04
"""A rule that is true at more than this share of the text is combined with other rules."""
_BEST = 6


class Found(NamedTuple):
    """A rule, and its balanced accuracy on the text on which it was found."""

    rule: Rule
    accuracy: float


@dataclass(frozen=True)
class _Candidate:
    rule: Rule
    at: Bool[np.ndarray, " firing"]
    base: float
    cost: float

    @property
    def accuracy(self) -> float:
        return (float(self.at.mean()) + 1 - self.base) / 2

    @property
    def worth(self) -> float:
        return self.accuracy - self.cost


class RuleSearch:
    """Finds rules on one part of a text: the positions where `inside` is True."""

    def __init__(self, text: RuleText, inside: Bool[np.ndarray, " pos"]) -> None:
        """Count tokens, classes, endings and beginnings where `inside` is True.

        This takes about a second per 100,000 tokens.
        """
        self.text, self._inside, self._n = text, inside, max(1, int(inside.sum()))
        n_vocab = len(text.strings)
        self._share = {
            offset: np.bincount(found[inside & (found >= 0)], minlength=n_vocab) / self._n
            for offset, found in text.back.items()
        }
        self._rows, self._rules = _attributes(text)  # a row for each token, padded with 0
        self._bases = {offset: self._attribute_base(share) for offset, share in self._share.items()}
        self._place_base = text.places[inside].mean(axis=0)

    def _attribute_base(self, share: Float[np.ndarray, " vocab"]) -> Float[np.ndarray, " attribute"]:
        weights = np.broadcast_to(share[:, None], self._rows.shape)
        return np.bincount(self._rows.reshape(-1), weights=weights.reshape(-1), minlength=len(self._rules) + 1)

    @cached_property
    def _content(self) -> Bool[np.ndarray, " vocab"]:
        """Mark the content words: whole words that are not stop words."""
        tokens = self.text.classes.tokens
        return np.array([t.kind == "word" and t.word is not None and t.word not in STOP_WORDS for t in tokens])

    def find(self, firings: Int[np.ndarray, " firing"]) -> Found | None:
        """Return the best rule for where a memory fires; None if it has fewer than `FEWEST` firings or no rule fits."""
        if len(firings) < FEWEST:
            return None
        found = [
            *(one for offset in OFFSETS for one in self._of_offset(firings, offset)),
            *self._of_places(firings),
            *self._near(firings),
        ]
        found = sorted(found, key=lambda one: -one.worth)[:_BEST]
        if not found:
            return None
        best = max([found[0], *self._combined(found, firings)], key=lambda one: one.worth)
        return Found(best.rule, best.accuracy)

    def _of_offset(self, firings: Int[np.ndarray, " firing"], offset: int) -> list[_Candidate]:
        tokens = self.text.back[offset][firings]
        inside = tokens >= 0
        share = self._share[offset]
        seen, counts = np.unique(tokens[inside], return_counts=True)
        gain = counts / len(firings) - share[seen]
        order = np.argsort(-gain, kind="stable")[:MOST_TOKENS]
        enough = (counts[order] >= max(_SEEN_TWICE, _SHARE * len(firings))) & (gain[order] > 4 * COST)
        found = []
        if len(chosen := seen[order[enough]]):
            at = np.isin(tokens, chosen)
            rule = TokenAt(offset, tuple(chosen.tolist()))
            found.append(_Candidate(rule, at, float(share[chosen].sum()), COST * (len(chosen) - 1)))
        rows = self._rows[tokens[inside]]
        numbers = np.bincount(rows.reshape(-1), minlength=len(self._rules) + 1)
        worth = numbers / len(firings) - self._bases[offset]
        worth[0] = -1
        best = int(worth.argmax())
        if worth[best] > 0:
            at = inside & (self._rows[np.maximum(tokens, 0)] == best).any(axis=1)
            kind, name = self._rules[best - 1]
            letters = {"ending": EndingAt, "beginning": BeginningAt}.get(kind)
            rule = ClassAt(offset, name, kind == "meaning") if letters is None else letters(offset, name)
            found.append(_Candidate(rule, at, float(self._bases[offset][best]), COST))
        return found

    def _of_places(self, firings: Int[np.ndarray, " firing"]) -> list[_Candidate]:
        at = self.text.places[firings]
        bases = self._place_base
        return [
            _Candidate(Place(name), at[:, i], float(bases[i]), COST)
            for i, name in enumerate(PLACES)
            if at[:, i].mean() > bases[i]
        ]

    def _near(self, firings: Int[np.ndarray, " firing"]) -> list[_Candidate]:
        """Find a `Near` rule: add content words while each adds a clearly larger share of firings than of positions."""
        window = firings[:, None] - np.arange(NEAR)
        inside = window >= self.text.start[firings][:, None]
        tokens = np.where(inside, self.text.token[np.maximum(window, 0)], -1)
        tokens[~self._content[np.maximum(tokens, 0)]] = -1
        ordered = np.sort(tokens, axis=1)
        first = ordered >= 0
        first[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
        seen, counts = np.unique(ordered[first], return_counts=True)
        base = 1 - (1 - self._share[0][seen]) ** NEAR
        order = np.argsort(base - counts / len(firings), kind="stable")[:12]
        order = order[counts[order] >= max(3, 0.1 * len(firings))]
        if not len(order):
            return []
        has = (tokens[:, :, None] == seen[order]).any(axis=1)  # shape (firing, word)
        chosen: list[int] = []
        at, total = np.zeros(len(firings), dtype=bool), 0.0
        while len(chosen) < MOST_TOKENS // 2:
            gains = (has & ~at[:, None]).mean(axis=0) - base[order] * (1 - total)
            best = int(gains.argmax())
            if gains[best] <= 0.04:
                break
            chosen.append(best)
            at, total = at | has[:, best], total + base[order][best] * (1 - total)
        if not chosen:
            return []
        rule = Near(tuple(seen[order[chosen]].tolist()))
        return [_Candidate(rule, at, self._exact_base(rule), 4 * COST * len(chosen))]

    def _exact_base(self, rule: Rule) -> float:
        return float(np.count_nonzero(rule.holds(self.text) & self._inside)) / self._n

    def _combined(self, found: Sequence[_Candidate], firings: Int[np.ndarray, " firing"]) -> list[_Candidate]:
        """Return the pairs of rules that are better than the best single rule.

        No pairs are tried if the best single rule is already true at few positions.
        """
        best = found[0]
        if best.base < _COMMON:
            return []
        pairs = []
        for i, first in enumerate(found):
            for second in found[i + 1 :]:
                if _same_place(first.rule, second.rule):
                    continue
                at = first.at & second.at
                # An exact count takes long, so it is made only if the pair is good enough by this estimate, which
                # assumes that the two rules are true independently of each other.
                likely = (float(at.mean()) + 1 - first.base * second.base) / 2
                cost = first.cost + second.cost + COST
                if likely - cost > best.worth + COST:
                    rules = sorted((first.rule, second.rule), key=_order)
                    rule = AllOf(tuple(rules))
                    pairs.append(_Candidate(rule, at, self._exact_base(rule), cost))
        return pairs


def _same_place(first: Rule, second: Rule) -> bool:
    return getattr(first, "offset", -1) == getattr(second, "offset", -2)


def _order(rule: Rule) -> int:
    """Return a sort key: rules with an offset come first, in the order of the text, then rules without one."""
    return -getattr(rule, "offset", -9)


def _attributes(text: RuleText) -> tuple[Int[np.ndarray, "vocab most"], list[tuple[str, str]]]:
    """Number the classes, word endings and word beginnings of the vocabulary from 1.

    Returns:
        For each token, the numbers of its classes, endings and beginnings, padded with 0; and each number's kind and
        name.
    """
    classes = text.classes
    numbers: dict[tuple[str, str], int] = {}
    rows: list[list[int]] = []
    for token, string in enumerate(text.strings):
        own = [c for c in classes.of(token).tolist() if classes.kinds[c] != "embedding"]
        named = [("meaning" if classes.evidence[c].startswith("WordNet ") else "class", classes.names[c]) for c in own]
        word = string.strip().lower()
        if word.isalpha() and word.isascii():
            named += [("ending", word[-n:]) for n in ENDINGS if len(word) > n + 1]
            named += [("beginning", word[:n]) for n in BEGINNINGS if len(word) > n + 1]
        rows.append([numbers.setdefault(one, len(numbers) + 1) for one in dict.fromkeys(named)])
    table = np.zeros((len(rows), max([1, *map(len, rows)])), dtype=np.int64)
    for token, row in enumerate(rows):
        table[token, : len(row)] = row
    return table, list(numbers)

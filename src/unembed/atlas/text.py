"""A text on which rules are evaluated: the tokens up to each position, and properties such as "in brackets".

Whether a rule is true at a position depends on the text up to the token there, this token included. It depends on
nothing after the position, and on nothing before the start of the passage (a sentence or a window of the index).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from jaxtyping import Bool, Int

from unembed.concepts.token_classes import Classes

OFFSETS = (0, 1, 2)
"""Offsets of the tokens that a rule can be about: 0 is the token at the position, 1 the one before it."""
NEAR = 32
"""Number of tokens, up to the position and including it, in which the rule `Near` finds the words of a topic."""
LANGUAGES = {
    "in French": "le les des et est dans une pour que qui pas du sur au avec",
    "in German": "der das und nicht mit auf ist ein eine den von zu dem wir sich",
    "in Spanish": "el los las del y que con para por una su como se es en",
}
"""Frequent words of each language that are not English words; a text with several of them counts as that language."""
PLACES = (
    "in quotation marks",
    "in brackets",
    "in code",
    "at the start of a sentence",
    "seen before",
    "pair seen before",
    "near the start of a sentence",
    "late in a sentence",
    *LANGUAGES,
)
"""Properties that a position can have, in the order of the columns of `RuleText.places`."""
_CODE = "=(){}[]_;#<>\\"
_WINDOW, _CODE_SHARE, _FOREIGN_WORDS = 32, 0.2, 4
"""Of the last `_WINDOW` tokens, the share that must contain characters of `_CODE` for a position to be in code, and the
number that must be words of another language for it to be in that language."""
_EARLY, _LATE = 5, 20
"""The first 5 tokens of a sentence are near its start; those after its first 20 tokens are late in it."""
_OPENING, _CLOSING = "([{", ")]}"


@dataclass(frozen=True, eq=False)
class RuleText:
    """The tokens of a text that is divided into passages.

    Attributes:
        token: the token at each position.
        start: the first position of the passage that each position belongs to.
        strings: the text of every token of the vocabulary.
        classes: the classes of every token of the vocabulary.
    """

    token: Int[np.ndarray, " pos"]
    start: Int[np.ndarray, " pos"]
    strings: tuple[str, ...]
    classes: Classes

    @classmethod
    def of(
        cls,
        token: Int[np.ndarray, " pos"],
        starts: Int[np.ndarray, " passage"],
        strings: tuple[str, ...],
        classes: Classes,
    ) -> RuleText:
        """Build a text from its tokens and the first position of each passage, in increasing order."""
        lengths = np.diff(np.append(starts, len(token)))
        return cls(np.asarray(token, dtype=np.int64), np.repeat(starts, lengths).astype(np.int64), strings, classes)

    def __len__(self) -> int:
        """The number of positions."""
        return len(self.token)

    @cached_property
    def back(self) -> dict[int, Int[np.ndarray, " pos"]]:
        """For each offset, the token `offset` tokens before each position; -1 where that is before the passage."""
        return {offset: self._back(offset) for offset in OFFSETS}

    def _back(self, offset: int) -> Int[np.ndarray, " pos"]:
        at = np.arange(len(self)) - offset
        return np.where(at >= self.start, self.token[np.maximum(at, 0)], -1)

    def has(self, members: Bool[np.ndarray, " vocab"], offset: int) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at which the token `offset` tokens earlier is in `members`."""
        found = self.back[offset]
        return members[found] & (found >= 0)

    @cached_property
    def _by_token(self) -> tuple[Int[np.ndarray, " pos"], Int[np.ndarray, " vocab_and_one"]]:
        """All positions sorted by their token, and the index in this list at which each token's positions start."""
        counts = np.bincount(self.token, minlength=len(self.strings))
        return np.argsort(self.token, kind="stable"), np.concatenate([[0], np.cumsum(counts)])

    def _positions(self, tokens: Sequence[int]) -> Int[np.ndarray, " found"]:
        order, starts = self._by_token
        return np.concatenate([order[starts[token] : starts[token + 1]] for token in tokens])

    def after(self, tokens: Sequence[int], offset: int) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at which the token `offset` tokens earlier is one of `tokens`."""
        return self._mark(tokens, offset, offset + 1)

    def recent(self, tokens: Sequence[int]) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at which one of `tokens` is among the last `NEAR` tokens."""
        return self._mark(tokens, 0, NEAR)

    def _mark(self, tokens: Sequence[int], first: int, end: int) -> Bool[np.ndarray, " pos"]:
        """Mark the positions at least `first` and fewer than `end` tokens after one of `tokens` in the same passage."""
        at = self._positions(tokens)
        found = np.zeros(len(self), dtype=bool)
        for step in range(first, end):
            reached = at[at < len(self) - step] + step
            found[reached[self.start[reached] <= reached - step]] = True
        return found

    @lru_cache(maxsize=256)  # noqa: B019  the cache keeps the text alive, but a build has only one
    def ending_in(self, ending: str) -> Bool[np.ndarray, " vocab"]:
        """Mark the tokens of the vocabulary that are words ending in `ending`."""
        return np.char.endswith(self._letters, ending)

    @lru_cache(maxsize=256)  # noqa: B019  the cache keeps the text alive, but a build has only one
    def beginning_with(self, beginning: str) -> Bool[np.ndarray, " vocab"]:
        """Mark the tokens of the vocabulary that are words beginning with `beginning`."""
        return np.char.startswith(self._letters, beginning)

    @cached_property
    def _letters(self) -> np.ndarray:
        """The text of each token in lower case; empty if it has more than 32 characters or any that is not a letter."""
        words = (text.strip().lower() for text in self.strings)
        return np.array([word if word.isalpha() and len(word) <= 32 else "" for word in words])

    @cached_property
    def places(self) -> Bool[np.ndarray, "pos place"]:
        """Whether each position has each of the properties `PLACES`."""
        starts = self._starts_sentence()
        before = self._in_sentence(starts)
        return np.stack(
            [
                self._counted(lambda text: text.count('"') + text.count("“") + text.count("”")) % 2 == 1,
                self._depth() > 0,
                self._is_code(),
                starts,
                self._seen(self.token),
                self._pair_seen(),
                before < _EARLY,
                before >= _LATE,
                *(self._recently(self._is_word(words)) >= _FOREIGN_WORDS for words in LANGUAGES.values()),
            ],
            axis=1,
        )

    def _of_token(self, count: object) -> Int[np.ndarray, " vocab"]:
        assert callable(count)
        return np.array([count(text) for text in self.strings], dtype=np.int64)

    def _counted(self, count: object) -> Int[np.ndarray, " pos"]:
        """Return, for each position, the sum of `count(text)` over the tokens of its passage up to and including it."""
        total = np.cumsum(self._of_token(count)[self.token])
        before = np.concatenate([[0], total])[self.start]
        return total - before

    def _depth(self) -> Int[np.ndarray, " pos"]:
        """Return the number of open brackets after each position; unmatched closing brackets are ignored."""
        net = self._counted(lambda text: sum(text.count(c) for c in _OPENING) - sum(text.count(c) for c in _CLOSING))
        # `least` is the lowest net count so far in the passage. If negative, it is minus the number of brackets that
        # were closed without being opened. One running minimum gives it for all passages, because `number * step`, a
        # larger amount for each later passage, is first subtracted: so no minimum of an earlier passage counts.
        number = np.cumsum(self.start == np.arange(len(self)))
        step = 1 + 2 * int(np.abs(net).max(initial=0))
        least = np.minimum.accumulate(net - number * step) + number * step
        return net - np.minimum(least, 0)

    def _is_code(self) -> Bool[np.ndarray, " pos"]:
        marks = self._of_token(lambda text: any(c in text for c in _CODE))
        return self._recently(marks) >= _CODE_SHARE * np.minimum(np.arange(len(self)) - self.start + 1, _WINDOW)

    def _is_word(self, words: str) -> Int[np.ndarray, " vocab"]:
        known = set(words.split())
        return self._of_token(lambda text: text.strip().lower() in known)

    def _recently(self, marked: Int[np.ndarray, " vocab"]) -> Int[np.ndarray, " pos"]:
        """Count, at each position, the marked tokens among the last `_WINDOW` tokens of the passage."""
        marks = np.cumsum(marked[self.token])
        first = np.maximum(self.start, np.arange(len(self)) - _WINDOW + 1)
        return marks - np.concatenate([[0], marks])[first]

    def _in_sentence(self, starts: Bool[np.ndarray, " pos"]) -> Int[np.ndarray, " pos"]:
        """Return, for each position, the number of tokens of its sentence that come before it."""
        at = np.arange(len(self))
        return at - np.maximum.accumulate(np.where(starts | (at == self.start), at, 0))

    def _starts_sentence(self) -> Bool[np.ndarray, " pos"]:
        ends = self._of_token(lambda text: text.rstrip("\"' )").endswith((".", "!", "?")) or "\n" in text) > 0
        at = np.arange(len(self))
        before = ends[self.token[np.maximum(at - 1, 0)]] | (at == self.start)
        return before & ~ends[self.token]

    def _seen(self, key: Int[np.ndarray, " pos"]) -> Bool[np.ndarray, " pos"]:
        """Mark the positions whose value of `key` occurred earlier in the same passage."""
        order = np.lexsort((np.arange(len(self)), key, self.start))
        same = np.zeros(len(self), dtype=bool)
        first, second = order[:-1], order[1:]
        same[second] = (key[first] == key[second]) & (self.start[first] == self.start[second])
        return same

    def _pair_seen(self) -> Bool[np.ndarray, " pos"]:
        before = self.back[1]
        return self._seen((before + 1) * len(self.strings) + self.token) & (before >= 0)

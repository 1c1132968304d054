"""Find what the texts on which a memory (FFN neuron) fires most have in common.

These texts are prefixes, which end with the token on which the memory fires. A pattern is sought at each of their last
three tokens: a token that at least a share `SHARED` of the prefixes have there, or else a class of tokens (numbers,
months, prepositions). If there is none, the pattern may be a content word that occurs among the last `WINDOW` tokens of
at least a share `SHARED` of the prefixes. The p-value is the binomial tail probability, given how frequent the token,
class or word is in the corpus, times the number of tokens or classes that were tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from unembed.concepts.token_classes import Classes

SHARED = 0.6
"""The smallest share of the triggers that must have a property for it to be a pattern."""
MAX_BASE = 0.1
"""A property that more than this share of all tokens have is not a pattern."""
SLOTS = 3
"""Number of tokens at the end of a prefix that may form a pattern."""
WINDOW = 20
"""Number of tokens at the end of a prefix that are searched for a shared word."""


@dataclass(frozen=True)
class Slot:
    """What the texts have in common at one position: offset 0 is their last token, -1 the token before it."""

    offset: int
    name: str
    """The token's text, or the name of the class."""
    is_token: bool
    share: float
    base: float
    """Share of all tokens of the corpus that have the property."""
    p: float


@dataclass(frozen=True)
class TriggerPattern:
    """What the texts on which a memory (FFN neuron) fires most have in common."""

    slots: tuple[Slot, ...]
    """The common properties by position, in the order of the text."""
    word: Slot | None
    """A word that the prefixes share; only if their last tokens have nothing in common."""

    @property
    def parts(self) -> tuple[Slot, ...]:
        """What the prefixes have in common: `slots`, or the word that they share if their last tokens share nothing."""
        return self.slots if self.word is None else (self.word,)

    @property
    def p(self) -> float:
        """The smallest p-value of the common properties, times `SLOTS` + 1, the number of positions that were tried."""
        return min([1.0, *((SLOTS + 1) * part.p for part in self.parts)])

    @property
    def size(self) -> float:
        """The largest excess of a common property over chance, 0 to 1.

        The excess is the property's share of the texts minus its share of the corpus, divided by the largest possible
        difference.
        """
        return max([0.0, *((part.share - part.base) / (1 - part.base) for part in self.parts)])


class PatternFinder:
    """Finds what prefixes from one corpus have in common."""

    def __init__(self, classes: Classes, text: Int[np.ndarray, " pos"]) -> None:
        self._classes = classes
        n = len(classes.tokens)
        counts = np.bincount(text, minlength=n)[:n]
        self.frequency: Float[np.ndarray, " token"] = counts / max(1, int(counts.sum()))
        tokens = np.repeat(np.arange(n), np.diff(classes.starts))
        self._class_base = np.bincount(
            classes.classes, weights=self.frequency[tokens], minlength=len(classes.names)
        )  # (class,)
        self._is_word = np.array([t.kind == "word" and t.word is not None for t in classes.tokens])
        stop = [i for i, kind in enumerate(classes.kinds) if kind == "stopwords"]
        self._is_word &= ~np.isin(np.arange(n), tokens[np.isin(classes.classes, stop)])
        self._tried = (max(1, int((counts > 0).sum())), max(1, len(classes.names)))

    def find(self, prefixes: Int[np.ndarray, "trigger window"], strings: list[str]) -> TriggerPattern | None:
        """Return what some prefixes have in common; None if that is nothing, or if there are fewer than 5 prefixes.

        Args:
            prefixes: the last tokens of each prefix, padded with -1 on the left.
            strings: the text of every token of the vocabulary.
        """
        if len(prefixes) < 5:
            return None
        slots = []
        for offset in range(SLOTS):
            column = prefixes[:, prefixes.shape[1] - 1 - offset]
            if slot := self._token(column, -offset, strings) or self._class(column, -offset):
                slots.append(slot)
        if slots:
            return TriggerPattern(tuple(reversed(slots)), None)
        word = self._word(prefixes, strings)
        return None if word is None else TriggerPattern((), word)

    def _token(self, column: np.ndarray, offset: int, strings: list[str]) -> Slot | None:
        tokens, counts = np.unique(column[column >= 0], return_counts=True)
        if not len(tokens) or counts.max() < SHARED * len(column):
            return None
        token, count = int(tokens[counts.argmax()]), int(counts.max())
        base = float(self.frequency[token])
        return self._slot(offset, strings[token], True, count, len(column), base, self._tried[0])

    def _class(self, column: np.ndarray, offset: int) -> Slot | None:
        of_token = [self._classes.of(int(token)) for token in column if token >= 0]
        if not of_token:
            return None
        numbers, counts = np.unique(np.concatenate(of_token), return_counts=True)
        found = _least_probable(numbers, counts, self._class_base[numbers], len(column))
        if found is None:
            return None
        number, count, base = found
        return self._slot(offset, self._classes.names[number], False, count, len(column), base, self._tried[1])

    def _word(self, prefixes: np.ndarray, strings: list[str]) -> Slot | None:
        inside = [np.unique(row[row >= 0]) for row in prefixes]
        tokens, counts = np.unique(np.concatenate(inside), return_counts=True)
        tokens, counts = tokens[self._is_word[tokens]], counts[self._is_word[tokens]]
        base = 1 - (1 - self.frequency[tokens]) ** prefixes.shape[1]
        found = _least_probable(tokens, counts, base, len(prefixes))
        if found is None:
            return None
        token, count, share = found
        return self._slot(-prefixes.shape[1], strings[token], True, count, len(prefixes), share, self._tried[0])

    def _slot(self, offset: int, name: str, is_token: bool, count: int, n: int, base: float, tried: int) -> Slot | None:
        from scipy.stats import binom  # takes 0.4 seconds to import

        p = min(1.0, float(binom.sf(count - 1, n, base)) * tried)
        return Slot(offset, name, is_token, count / n, base, p) if base <= MAX_BASE else None


def _least_probable(numbers: np.ndarray, counts: np.ndarray, base: np.ndarray, n: int) -> tuple[int, int, float] | None:
    """Return the common property with the smallest p-value: its number, its count and its base rate in the corpus.

    None if no property is common enough.
    """
    from scipy.stats import binom  # takes 0.4 seconds to import

    shared = (counts >= SHARED * n) & (base <= MAX_BASE)
    if not shared.any():
        return None
    numbers, counts, base = numbers[shared], counts[shared], base[shared]
    best = int(np.lexsort((numbers, binom.logsf(counts - 1, n, base)))[0])
    return int(numbers[best]), int(counts[best]), float(base[best])

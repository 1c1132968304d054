"""Choose the words that a description names: those that rise most in every one of several groups of passages.

What a value vector raises differs from passage to passage, the more so the earlier its layer. So a word is named only
if it is among the `RISE_MOST` whole words that rise most in each group of passages that chooses words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.concepts.detection import log10_tail
from unembed.concepts.token_classes import COUNTED, Classes

NAMED = 8
"""Largest number of tokens that a description names."""
RISE_MOST, LEAST_NAMED = 12, 4
"""Number of words that count as those that rise most in a group of passages; smallest number of words that must be
among them in all groups, so that a description can name words."""
OFTEN = 4
"""A description names only tokens that occur at least this often in the index's text."""
_UNUSUAL = -4.0
"""A class is named if log10 of the probability that equally many random words all belong to it is below this."""


@dataclass(frozen=True)
class NamedTokens:
    """The tokens that a value vector raises, according to its description."""

    tokens: tuple[int, ...]
    name: str | None
    """A class that all the tokens are in; None if there is no such class, or if random words often share it."""


class NameableWords:
    """The words of a vocabulary that a description may name."""

    def __init__(self, classes: Classes, counts: Int[np.ndarray, " vocab"]) -> None:
        """Choose the words.

        Args:
            counts: number of occurrences of each token in the index's text.
        """
        self._classes = classes
        often = min(OFTEN, int(counts.max(initial=0)))
        found = [t for t in range(len(counts)) if counts[t] >= often and _is_whole(classes, t)]
        self.tokens = torch.tensor(found, dtype=torch.long)
        self._sizes = np.zeros(len(classes.names), dtype=np.int64)
        for token in self.tokens.tolist():
            self._sizes[classes.of(token)] += 1

    def rising(self, rises: Float[Tensor, "memory vocab"], most: int = RISE_MOST) -> list[list[int]]:
        """Return, for each value vector, the `most` words that rise most, highest first; all if there are fewer."""
        places = rises[:, self.tokens.to(rises.device)].topk(min(most, len(self.tokens)), dim=1).indices
        return self.tokens[places.cpu()].tolist()

    def named(self, tokens: list[int]) -> NamedTokens:
        """Return the first `NAMED` of these words, and the smallest class to which they all belong.

        No class is named if there is none, or if equally many random words would often all belong to it.
        """
        tokens = tokens[:NAMED]
        shared = set(self._classes.of(tokens[0]).tolist()).intersection(*(self._classes.of(t).tolist() for t in tokens))
        counted = [one for one in shared if self._classes.kinds[one] in COUNTED]
        smallest = min(counted, key=lambda one: (self._sizes[one], one), default=None)
        n, name = len(tokens), None
        if smallest is not None and log10_tail(len(self.tokens), int(self._sizes[smallest]), n, n) < _UNUSUAL:
            name = self._classes.names[smallest]
        return NamedTokens(tuple(tokens), name)


def _is_whole(classes: Classes, token: int) -> bool:
    """Return whether a token is a number, punctuation or a whole word from a word list, and not a piece of a word."""
    if classes.tokens[token].kind not in ("word", "number", "punctuation"):
        return False
    return any(classes.kinds[number] not in ("form", "embedding") for number in classes.of(token))

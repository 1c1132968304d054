"""Find what the tokens that a value vector raises have in common, so that a description names only such tokens.

The `LISTED` whole words whose logits rise most are examined. They have something in common if one of these is true:

- At least `_FEWEST` of them have similar unembedding rows: one word, and the words of the list that are most similar to
  it. Their mean cosine must exceed that of 75 % of the lists that random directions of the residual stream give.
- At least `_IN_CLASS` of them are in one token class of `concepts`. The probability of so large a number by chance must
  be lower than for the best class in 85 % of the lists that random directions give.
- At least `_SAME_LETTER` of them begin with the same letter.

Words are grouped by kind (capitalised words, other words, numbers, punctuation) and frequency. Before rows are
compared, the mean row of a word's group is subtracted from its row. Otherwise all rare names would look alike.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.concepts.detection import log10_tail
from unembed.concepts.token_classes import COUNTED, Classes

NAMED = 8
"""Largest number of tokens that a description names."""
LISTED = 20
"""Number of whole words, those that rise most, among which a description finds the tokens that it names."""
RISE_MOST, LEAST_NAMED, LEAST_SHARE = 15, 3, 0.6
"""A printed line names only words that are also among the `RISE_MOST` words that rise most at the passages that select
lines. At least `LEAST_NAMED` words, and this share of those that were named, must be left."""
OFTEN = 4
"""A description names only tokens that occur at least this often in the index's text."""
_FEWEST, _NEAREST = 4, 5
_IN_CLASS, _SAME_LETTER = 10, 12
_RANDOM, _PAIRS = 1000, 100_000
_ALIKE, _UNUSUAL, _LINKED = 0.75, 0.85, 0.995
"""Quantiles that set the thresholds: of the mean cosine in random lists, of -log10 of the probability of their best
class, and of the cosine of two random words."""


@dataclass(frozen=True)
class NamedTokens:
    """The tokens that a value vector raises, according to its description."""

    tokens: tuple[int, ...]
    name: str | None
    """The class that all the tokens are in; None if they are only similar."""


class _Star(NamedTuple):
    cosine: float
    members: list[int]


class SharedTokens:
    """Finds what the words whose logits a value vector raises most have in common."""

    def __init__(
        self,
        classes: Classes,
        counts: Int[np.ndarray, " vocab"],
        W_U: Float[Tensor, "vocab d_model"],
        seed: int = 0,
    ) -> None:
        """Choose the words that may be named, and compute the thresholds from random directions.

        Args:
            counts: number of occurrences of each token in the index's text.

        Memory: two float32 copies of the unembedding rows of the words that may be named.
        """
        self._classes = classes
        often = min(OFTEN, int(counts.max(initial=0)))
        self.words = torch.from_numpy(
            np.array([t for t in range(len(counts)) if counts[t] >= often and _is_whole(classes, t)], dtype=np.int64)
        )
        rows = W_U[self.words.to(W_U.device)].detach().float().cpu()
        self._rows = _unit(_centred(rows, self._groups(counts)))
        self._sizes = np.zeros(len(classes.names), dtype=np.int64)
        for token in self.words.tolist():
            self._sizes[classes.of(token)] += 1
        generator = torch.Generator().manual_seed(seed)
        self._link, self._least_cosine, self._least_class = 0.0, 0.0, 0.0
        if len(self.words) > LISTED:
            pairs = torch.randint(len(rows), (2, _PAIRS), generator=generator)
            self._link = float((self._rows[pairs[0]] * self._rows[pairs[1]]).sum(dim=1).quantile(_LINKED))
            lists = self._top(_unit(torch.randn(_RANDOM, rows.shape[1], generator=generator)) @ _unit(
                rows - rows.mean(dim=0)
            ).T)  # fmt: skip
            self._least_cosine = float(np.quantile([self._star(one).cosine for one in lists], _ALIKE))
            self._least_class = float(np.quantile([self._class(one)[1] for one in lists], _UNUSUAL))

    def _groups(self, counts: Int[np.ndarray, " vocab"]) -> Int[np.ndarray, " word"]:
        tokens = [self._classes.tokens[t] for t in self.words.tolist()]
        keys = [
            (one.kind, one.capitalised, min(int(np.log2(counts[t] + 1)), 6))
            for one, t in zip(tokens, self.words.tolist(), strict=True)
        ]
        numbers = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        return np.array([numbers[key] for key in keys], dtype=np.int64)

    def _top(self, scores: Float[Tensor, "memory word"]) -> Int[np.ndarray, "memory listed"]:
        """Return the indices into `words` of the highest scores in each row."""
        return scores.topk(min(LISTED, scores.shape[1]), dim=1).indices.cpu().numpy()

    def named(self, rises: Float[Tensor, "memory vocab"]) -> list[NamedTokens | None]:
        """Return the tokens to name for each value vector, most raised first; None if they have nothing in common."""
        return [self._named(row) for row in self._top(rises[:, self.words.to(rises.device)])]

    def _named(self, places: Int[np.ndarray, " listed"]) -> NamedTokens | None:
        if len(self.words) <= LISTED:
            return None
        star, (number, unusual) = self._star(places), self._class(places)
        in_class = self._members(places, number)
        classed = len(in_class) >= _IN_CLASS and unusual > self._least_class
        if len(star.members) >= _FEWEST and star.cosine > self._least_cosine:
            both = [place for place in star.members if place in in_class]
            if classed and 3 * len(both) >= 2 * len(star.members):
                return self._tokens(in_class, self._classes.names[number])
            return self._tokens(star.members, None)
        if classed:
            return self._tokens(in_class, self._classes.names[number])
        letter, count = self._letter(places)
        if count >= _SAME_LETTER:
            return self._tokens(
                [p for p in places.tolist() if self._first(p) == letter], f"words that begin with '{letter}'"
            )
        return None

    def that_still_rise(self, named: NamedTokens, rises: Float[Tensor, " vocab"]) -> NamedTokens | None:
        """Return the named words that are among the `RISE_MOST` words that rise most; None if too few of them are.

        Args:
            rises: the rises at passages on which the words were not found.
        """
        places = rises[self.words.to(rises.device)].topk(min(RISE_MOST, len(self.words))).indices.tolist()
        risen = set(self.words[places].tolist())
        tokens = tuple(token for token in named.tokens if token in risen)
        enough = len(tokens) >= max(LEAST_NAMED, LEAST_SHARE * len(named.tokens))
        return replace(named, tokens=tokens) if enough else None

    def _tokens(self, places: list[int], name: str | None) -> NamedTokens:
        return NamedTokens(tuple(self.words[places[:NAMED]].tolist()), name)

    def _star(self, places: Int[np.ndarray, " listed"]) -> _Star:
        """Find the word with the highest mean cosine to its nearest words in the list.

        Returns:
            The mean cosine; and the indices (into `words`) of this word and of the similar words, in the list's order.
        """
        rows = self._rows[torch.from_numpy(places)]
        cosines = rows @ rows.T
        cosines.fill_diagonal_(-1)
        means = cosines.topk(min(_NEAREST, len(places) - 1), dim=1).values.mean(dim=1)
        centre = int(means.argmax())
        near = (cosines[centre] >= self._link).tolist()
        return _Star(float(means[centre]), [int(p) for i, p in enumerate(places) if near[i] or i == centre])

    def _class(self, places: Int[np.ndarray, " listed"]) -> tuple[int, float]:
        """Return the class whose number of words in the list is least likely by chance, and -log10 of its probability.

        The class is -1 if no class has at least `_FEWEST` words in the list.
        """
        of_token = [self._classes.of(int(self.words[p])) for p in places]
        numbers, counts = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *of_token]), return_counts=True)
        best, most = -1, 0.0
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            if count >= _FEWEST and self._classes.kinds[number] in COUNTED:
                unusual = -log10_tail(len(self.words), int(self._sizes[number]), len(places), count)
                if unusual > most:
                    best, most = number, unusual
        return best, most

    def _members(self, places: Int[np.ndarray, " listed"], number: int) -> list[int]:
        return [int(p) for p in places if number in self._classes.of(int(self.words[p]))]

    def _first(self, place: int) -> str:
        return self._classes.tokens[int(self.words[place])].text[:1].lower()

    def _letter(self, places: Int[np.ndarray, " listed"]) -> tuple[str, int]:
        letters = Counter(letter for p in places.tolist() if (letter := self._first(p)).isalpha())
        return letters.most_common(1)[0] if letters else ("", 0)


def _is_whole(classes: Classes, token: int) -> bool:
    """Tell whether a token is a number, punctuation or a whole word from a word list, and not a piece of a word."""
    if classes.tokens[token].kind not in ("word", "number", "punctuation"):
        return False
    return any(classes.kinds[number] not in ("form", "embedding") for number in classes.of(token))


def _centred(rows: Float[Tensor, "word d_model"], groups: Int[np.ndarray, " word"]) -> Float[Tensor, "word d_model"]:
    found = rows.clone()
    for group in np.unique(groups):
        at = torch.from_numpy(np.flatnonzero(groups == group))
        found[at] -= rows[at].mean(dim=0)
    return found


def _unit(rows: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-9)

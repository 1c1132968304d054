"""An n-gram model of the same tokens, to say what a network adds to counting.

Interpolated modified Kneser-Ney with exact counts. Every n-gram that occurs has a number; the number of (w1 ... wn) is
looked up by the pair (number of w1 ... wn-1, wn), so that one sorted array of integers per order holds all counts.

Source: Chen and Goodman 1999, "An empirical study of smoothing techniques for language modeling", section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64


@dataclass(frozen=True)
class _Order:
    """The n-grams of one length, by their number."""

    keys: Int64[np.ndarray, " grams"]  # number of all but the last token, times d_vocab, plus the last token; sorted
    counts: Int64[np.ndarray, " grams"]  # occurrences; below the highest order, how many different tokens come before
    discounts: Float64[np.ndarray, " four"]  # taken off a count of 0, 1, 2, 3 or more
    totals: Float64[np.ndarray, " contexts"]  # sum of the counts that follow a context
    held_back: Float64[np.ndarray, " contexts"]  # share of a context's probability that goes to the order below


@dataclass(frozen=True)
class KneserNey:
    """Interpolated modified Kneser-Ney over token ids; `fit` makes one."""

    d_vocab: int
    orders: tuple[_Order, ...]

    @classmethod
    def fit(cls, tokens: np.ndarray, *, order: int, d_vocab: int) -> "KneserNey":
        """Count a line of token ids.

        Memory: about 60 bytes per token of the text and order.
        """
        tokens = tokens.astype(np.int64)
        numbers, keys_of, context_of, occurrences, suffix_of = tokens, [], [], [], []
        previous = np.zeros(len(tokens) + 1, dtype=np.int64)  # the empty context has number 0
        for n in range(1, order + 1):
            # numbers[i] is the n-gram that ends at token n - 1 + i; its context ends one token earlier
            keys = previous[: len(tokens) - n + 1] * d_vocab + tokens[n - 1 :]
            unique, first, numbers, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
            keys_of.append(unique)
            context_of.append(unique // d_vocab)
            occurrences.append(counts)
            if n > 1:
                suffix_of.append(previous[first + 1])
            previous = numbers.reshape(-1)
        made = []
        for n in range(order):
            counts = occurrences[n]
            if n + 1 < order:
                counts = np.bincount(suffix_of[n], minlength=len(counts))
            n_contexts = 1 if n == 0 else len(keys_of[n - 1])
            made.append(_smoothed(keys_of[n], context_of[n], counts, n_contexts))
        return cls(d_vocab, tuple(made))

    def probabilities(self, tokens: np.ndarray) -> Float64[np.ndarray, " pos"]:
        """The probability of each token given the up to order - 1 tokens before it."""
        tokens = tokens.astype(np.int64)
        probability = np.full(len(tokens), 1 / self.d_vocab)
        context = np.zeros(len(tokens), dtype=np.int64)  # the context of each token at this order; -1 where never seen
        for n, order in enumerate(self.orders):
            # A place too near the beginning has no context of n tokens and keeps what the shorter ones say.
            found = _find(order.keys, np.where(context >= 0, context * self.d_vocab + tokens, -1))
            probability = _interpolated(order, context, found, probability)
            context = np.concatenate([[-1], found[:-1]])
            context[:n] = -1
        return probability

    def distribution(self, context: list[int]) -> Float64[np.ndarray, " d_vocab"]:
        """The probability of every token after this context."""
        probability = np.full(self.d_vocab, 1 / self.d_vocab)
        every = np.arange(self.d_vocab)
        for n, order in enumerate(self.orders):
            if n > len(context):
                break
            number = 0
            for depth, token in enumerate(context[len(context) - n :]):
                if number >= 0:
                    number = int(_find(self.orders[depth].keys, np.array([number * self.d_vocab + token]))[0])
            if number < 0:
                break
            found = _find(order.keys, number * self.d_vocab + every)
            probability = _interpolated(order, np.full(self.d_vocab, number), found, probability)
        return probability


def _smoothed(keys: np.ndarray, contexts: np.ndarray, counts: np.ndarray, n_contexts: int) -> _Order:
    discounts = _discounts(counts)
    totals = np.bincount(contexts, weights=counts, minlength=n_contexts)
    taken = np.bincount(contexts, weights=discounts[np.minimum(counts, 3)], minlength=n_contexts)
    with np.errstate(invalid="ignore"):
        held_back = np.where(totals > 0, taken / totals, 1.0)
    return _Order(keys, counts, discounts, totals, held_back)


def _discounts(counts: np.ndarray) -> np.ndarray:
    """Chen and Goodman's estimate from how many n-grams occur one to four times; half where there are none."""
    ones, twos, threes, fours = ((counts == c).sum() for c in (1, 2, 3, 4))
    if min(ones, twos, threes) == 0:
        return np.array([0.0, 0.5, 0.5, 0.5])
    share = ones / (ones + 2 * twos)
    estimates = [1 - 2 * share * twos / ones, 2 - 3 * share * threes / twos, 3 - 4 * share * fours / threes]
    return np.array([0.0, *(float(np.clip(e, 0.05, c - 0.05)) for c, e in enumerate(estimates, start=1))])


def _interpolated(order: _Order, context: np.ndarray, found: np.ndarray, below: np.ndarray) -> np.ndarray:
    known = context >= 0
    at = np.where(known, context, 0)
    counts = np.where(found >= 0, order.counts[found], 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        discounted = (counts - order.discounts[np.minimum(counts, 3)]) / order.totals[at]
    # A context that was only ever seen at the end of the text predicts nothing.
    usable = known & (order.totals[at] > 0)
    return np.where(usable, discounted + order.held_back[at] * below, below)


def _find(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The number of each wanted key, -1 where it does not occur."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, at, -1)

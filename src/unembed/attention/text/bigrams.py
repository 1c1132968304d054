"""Count pairs of adjacent tokens (bigrams) in text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.corpus import CorpusSource
from unembed.corpus.windows import windows_of
from unembed.models.decoder import Decoder

_DISCOUNT = 0.75


@dataclass(frozen=True, eq=False)
class Bigrams:
    """The counts of all pairs of adjacent tokens, sorted. Memory: three numbers for each pair that occurs."""

    first: Int[Tensor, " pair"]
    second: Int[Tensor, " pair"]
    count: Int[Tensor, " pair"]
    d_vocab: int

    @classmethod
    def of(cls, tokens: list[Tensor], d_vocab: int) -> Bigrams:
        """Count the bigrams inside each tensor of tokens."""
        codes = torch.cat([t[:-1].long() * d_vocab + t[1:].long() for t in tokens if len(t) > 1])
        unique, count = codes.unique(return_counts=True)
        return cls(unique // d_vocab, unique % d_vocab, count, d_vocab)

    @classmethod
    def of_corpus(cls, lm: Decoder, corpus: CorpusSource = None) -> Bigrams:
        """Count the bigrams of a corpus, each pair once, although the windows that the model reads overlap."""
        pieces = [s.tokens[max(s.skip - 1, 0) :] for s in windows_of(corpus).segments(lm)]
        return cls.of(pieces, lm.d_vocab)

    def table(self, first: Int[Tensor, " row"], second: Int[Tensor, " column"]) -> Int[Tensor, "row column"]:
        """Count how often each token of `second` follows each token of `first`."""
        return self._count_of(first[:, None] * self.d_vocab + second)

    def _count_of(self, wanted: Int[Tensor, "*pair"]) -> Int[Tensor, "*pair"]:
        """Return the counts of pairs, each encoded as first * d_vocab + second."""
        codes = self.first * self.d_vocab + self.second
        at = torch.searchsorted(codes, wanted).clamp_max(len(codes) - 1)
        return torch.where(codes[at] == wanted, self.count[at], 0)

    @property
    def occurrences(self) -> Int[Tensor, " d_vocab"]:
        """Count how often each token is the first of a pair."""
        return torch.zeros(self.d_vocab, dtype=torch.long).index_add_(0, self.first, self.count)

    @property
    def frequencies(self) -> Float[Tensor, " d_vocab"]:
        """Count how often each token is the second of a pair."""
        return torch.zeros(self.d_vocab, dtype=torch.float64).index_add_(0, self.second, self.count.double())

    def row(self, token: int) -> Float[Tensor, " d_vocab"]:
        """Count how often each token follows the given one."""
        counts = torch.zeros(self.d_vocab, dtype=torch.float64)
        chosen = self.first == token
        counts[self.second[chosen]] = self.count[chosen].double()
        return counts

    def cross_entropy_of(self, other: Bigrams) -> float:
        """Return the cross-entropy, in nats per token, of this smoothed bigram model on the counts of another text.

        Smoothing subtracts 0.75 from each count (absolute discounting). The freed probability is distributed in
        proportion to one plus how often each token is the second of a pair.
        """
        unigram = self.frequencies + 1
        unigram /= unigram.sum()
        total = self.occurrences.double()
        kinds = torch.zeros_like(total).index_add_(0, self.first, torch.ones_like(self.first, dtype=torch.float64))
        known = self._count_of(other.first * self.d_vocab + other.second).double()
        n = total[other.first].clamp_min(1)
        spare = torch.where(total[other.first] > 0, _DISCOUNT * kinds[other.first] / n, torch.ones_like(n))
        p = (known - _DISCOUNT).clamp_min(0) / n + spare * unigram[other.second]
        weights = other.count.double()
        return float(-(p.log() * weights).sum() / weights.sum())

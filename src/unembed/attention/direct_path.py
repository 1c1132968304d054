"""The model without layers: what token embedding times unembedding alone predicts, beside the corpus' bigrams.

Source: Elhage et al. 2021, "Zero-layer transformers".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.attention.folded_weights import embedding
from unembed.attention.windows import windows_of
from unembed.errors import InvalidInput
from unembed.lens import logits_of
from unembed.models.decoder import Decoder

_DISCOUNT = 0.75


@dataclass(frozen=True, eq=False)
class Bigrams:
    """Counts of adjacent tokens, as sorted pairs. Memory: one number for each pair that occurs."""

    first: Int[Tensor, " pair"]
    second: Int[Tensor, " pair"]
    count: Int[Tensor, " pair"]
    d_vocab: int

    @classmethod
    def of(cls, tokens: list[Tensor], d_vocab: int) -> Bigrams:
        """The bigrams inside each piece of text."""
        codes = torch.cat([t[:-1].long() * d_vocab + t[1:].long() for t in tokens if len(t) > 1])
        unique, count = codes.unique(return_counts=True)
        return cls(unique // d_vocab, unique % d_vocab, count, d_vocab)

    def cross_entropy_of(self, other: Bigrams) -> float:
        """Nats a token of these bigrams, smoothed, on the counts of other text.

        Absolute discounting of 0.75 backed by add-one unigrams of second tokens.
        """
        unigram = torch.ones(self.d_vocab, dtype=torch.float64).index_add_(0, self.second, self.count.double())
        unigram /= unigram.sum()
        total = torch.zeros(self.d_vocab, dtype=torch.float64).index_add_(0, self.first, self.count.double())
        kinds = torch.zeros_like(total).index_add_(0, self.first, torch.ones_like(self.first, dtype=torch.float64))
        codes, wanted = self.first * self.d_vocab + self.second, other.first * self.d_vocab + other.second
        at = torch.searchsorted(codes, wanted).clamp_max(len(codes) - 1)
        known = torch.where(codes[at] == wanted, self.count[at].double(), torch.zeros(1, dtype=torch.float64))
        n = total[other.first].clamp_min(1)
        spare = torch.where(total[other.first] > 0, _DISCOUNT * kinds[other.first] / n, torch.ones_like(n))
        p = (known - _DISCOUNT).clamp_min(0) / n + spare * unigram[other.second]
        weights = other.count.double()
        return float(-(p.log() * weights).sum() / weights.sum())


@dataclass(frozen=True, eq=False)
class DirectPath:
    """How well the direct path stands for bigram statistics.

    Attributes:
        tokens: the tokens compared one by one, most frequent first.
        spearman: for each, rank correlation of its direct-path logits with the corpus' counts of what follows it.
        cross_entropy: of softmax(direct path) on the second half of the corpus, nats a token.
        bigram_cross_entropy: of the first half's smoothed bigram model on the same text.
        unigram_cross_entropy: of the first half's smoothed token frequencies.
        mean_spearman: weighted by how often each token occurs.
    """

    tokens: Int[Tensor, " token"]
    spearman: Float[Tensor, " token"]
    occurrences: Int[Tensor, " token"]
    cross_entropy: float
    bigram_cross_entropy: float
    unigram_cross_entropy: float

    @property
    def mean_spearman(self) -> float:
        """Mean over tokens, weighted by occurrences."""
        weights = self.occurrences.double()
        return float((self.spearman * weights).sum() / weights.sum())


@torch.no_grad()
def direct_path(lm: Decoder, corpus: Any = None, *, n_tokens: int = 200, max_tokens: int = 400_000) -> DirectPath:
    """Compare the direct path, through the model's own norms, with bigrams of a corpus.

    Args:
        lm: the model.
        corpus: anything `unembed.open_corpus` takes.
        n_tokens: how many of the most frequent tokens to compare by rank.
        max_tokens: where to stop reading.

    Memory: a block of rows of the vocabulary's width.
    """
    pieces, read = [], 0
    for segment in windows_of(corpus, lm.n_ctx or 512, overlap=0).segments(lm):
        pieces.append(segment.tokens)
        read += len(segment)
        if read >= max_tokens:
            break
    if len(pieces) < 2:
        raise InvalidInput("the corpus", why="it is too short for bigrams of one half to be tried on the other")
    half = len(pieces) // 2
    known, tried = Bigrams.of(pieces[:half], lm.d_vocab), Bigrams.of(pieces[half:], lm.d_vocab)
    every = Bigrams.of(pieces, lm.d_vocab)
    loss = 0.0
    for ids in tried.first.unique().split(64):
        log_p = _log_probabilities(lm, ids)
        chosen = torch.isin(tried.first, ids)
        rows = torch.searchsorted(ids, tried.first[chosen])
        loss -= float((log_p[rows, tried.second[chosen]].double() * tried.count[chosen]).sum())
    occurrences = torch.zeros(lm.d_vocab, dtype=torch.long).index_add_(0, every.first, every.count)
    tokens = occurrences.topk(min(n_tokens, int((occurrences > 0).sum()))).indices
    spearman = torch.stack([_spearman(lm, every, int(t)) for t in tokens])
    unigram = Bigrams(torch.zeros_like(known.second), known.second, known.count, lm.d_vocab)
    return DirectPath(
        tokens, spearman, occurrences[tokens], loss / int(tried.count.sum()), known.cross_entropy_of(tried),
        _unigram_loss(unigram, tried),
    )  # fmt: skip


def _log_probabilities(lm: Decoder, ids: Tensor) -> Float[Tensor, "token d_vocab"]:
    logits = logits_of(lm, embedding(lm, "folded", ids.to(lm.device)), "final")
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1).cpu()


def _unigram_loss(known: Bigrams, tried: Bigrams) -> float:
    counts = torch.ones(known.d_vocab, dtype=torch.float64).index_add_(0, known.second, known.count.double())
    log_p = (counts / counts.sum()).log()
    return float(-(log_p[tried.second] * tried.count).sum() / tried.count.sum())


def _spearman(lm: Decoder, bigrams: Bigrams, token: int) -> Float[Tensor, ""]:
    """Rank correlation over all outputs of the direct path's logits with how often each follows the token."""
    counts = torch.zeros(lm.d_vocab, dtype=torch.float64)
    chosen = bigrams.first == token
    counts[bigrams.second[chosen]] = bigrams.count[chosen].double()
    said = _log_probabilities(lm, torch.tensor([token]))[0].double()
    return torch.corrcoef(torch.stack([average_ranks(counts), average_ranks(said)]))[0, 1]


def average_ranks(values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Ranks from 0, equal values sharing the mean of theirs."""
    _, inverse, count = values.unique(return_inverse=True, return_counts=True)
    ends = count.cumsum(dim=0).double()
    return (ends - (count.double() + 1) / 2)[inverse]

"""Measure how coherent a list of tokens is: how similar the contexts are in which its tokens occur in a text.

The contexts of a token are the tokens one or two positions before and after it. A token's context vector has the
positive pointwise mutual information of the token and each context, reduced to `DIM` directions (latent semantic
analysis; Levy and Goldberg 2014 for the weighting). The model's weights are not used, so this evidence is independent
of the embedding space from which the lists come. A list is compared with random lists of equally frequent tokens (our
addition), since otherwise lists of function words would seem coherent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse
from scipy.sparse.linalg import svds

OFFSETS = (-2, -1, 1, 2)
CONTEXTS = 1000
"""Number of tokens that serve as contexts: the most frequent ones."""
DIM = 64
MIN_COUNT = 10
"""A token gets a context vector if it occurs at least this often."""
MIN_TOKENS = 5
"""A list is judged only if at least this number of its tokens have a vector."""
DRAWS = 199
"""Number of random lists of equally frequent tokens that a list is compared with; the smallest p-value is 1 / 200."""
_ROWS = 4096
_BETWEEN = 8
"""After each group of this many random lists, lists that can no longer become significant are not compared further."""


@dataclass(frozen=True, eq=False)
class ContextVectors:
    """The context vectors of frequent tokens, scaled to length 1, and the number of occurrences of every token."""

    vectors: Float[np.ndarray, "token dim"]
    """The context vector of each token; zero for tokens without one."""
    counts: Int[np.ndarray, " token"]

    @property
    def known(self) -> Bool[np.ndarray, " token"]:
        """True for tokens that have a vector."""
        return np.asarray(self.vectors.any(axis=1))

    @classmethod
    def count(
        cls, text: Int[np.ndarray, " pos"], eligible: Bool[np.ndarray, " token"], dim: int = DIM
    ) -> ContextVectors:
        """Count contexts in a text.

        Args:
            text: token ids; documents follow each other without a gap.
            eligible: a mask of the tokens that may have a vector, such as whole words.
            dim: number of dimensions of the vectors.

        Memory: (tokens with a vector) * dim floats, and the sparse counts: at most four for each token of the text.
        """
        n = len(eligible)
        counts = np.bincount(text, minlength=n)[:n]
        rows = np.flatnonzero(eligible & (counts >= MIN_COUNT))
        vectors = np.zeros((n, dim), dtype=np.float32)
        contexts = np.argsort(-counts, kind="stable")[: min(CONTEXTS, int((counts > 0).sum()))]
        if len(rows) <= dim or len(contexts) <= dim:
            return cls(vectors, counts)
        row_of, column_of = np.full(n, -1), np.full(n, -1)
        row_of[rows], column_of[contexts] = np.arange(len(rows)), np.arange(len(contexts))
        blocks = [_block(text, offset, row_of, column_of, len(rows), len(contexts)) for offset in OFFSETS]
        weighted = _positive_pmi(sparse.csr_matrix(sparse.hstack(blocks)))
        start = np.random.default_rng(0).standard_normal(min(len(rows), len(OFFSETS) * len(contexts)))
        left, sizes, _ = svds(weighted, k=dim, v0=start)
        found = left * sizes  # (row, dim)
        vectors[rows] = found / np.linalg.norm(found, axis=1, keepdims=True).clip(1e-12)
        return cls(vectors, counts)


def _block(
    text: np.ndarray, offset: int, row_of: np.ndarray, column_of: np.ndarray, n_rows: int, n_columns: int
) -> sparse.csr_matrix:
    """Count how often each token has each context at a distance of `offset` tokens, as a sparse matrix."""
    here, there = (text[:-offset], text[offset:]) if offset > 0 else (text[-offset:], text[:offset])
    rows, columns = row_of[here], column_of[there]
    inside = (rows >= 0) & (columns >= 0)
    ones = np.ones(int(inside.sum()), dtype=np.float64)
    return sparse.csr_matrix((ones, (rows[inside], columns[inside])), shape=(n_rows, n_columns))


def _positive_pmi(counts: sparse.csr_matrix) -> sparse.csr_matrix:
    cells = counts.tocoo()
    total = cells.data.sum()
    by_row, by_column = np.asarray(counts.sum(axis=1)).ravel(), np.asarray(counts.sum(axis=0)).ravel()
    pmi = np.log(cells.data * total / (by_row[cells.row] * by_column[cells.col]))
    return sparse.csr_matrix((pmi.clip(min=0), (cells.row, cells.col)), shape=counts.shape)


@dataclass(frozen=True, eq=False)
class Coherence:
    """How similar the tokens of each list are to each other, compared with random words of the same frequencies."""

    similarity: Float[np.ndarray, " list"]
    """Mean cosine of all pairs; NaN for lists with fewer than `MIN_TOKENS` tokens that have a vector."""
    expected: Float[np.ndarray, " list"]
    """The mean similarity of the random lists."""
    p: Float[np.ndarray, " list"]
    """The p-value of a list: the share of random lists whose tokens are at least as similar to each other. The list
    itself counts as one of them. 1 for a list that was not tested."""

    @property
    def size(self) -> Float[np.ndarray, " list"]:
        """Return how far the similarity exceeds that of random lists, as a share of the largest possible excess."""
        size = (self.similarity - self.expected) / (1 - self.expected).clip(1e-9)
        return np.nan_to_num(size).clip(0, 1)


def coherence(
    contexts: ContextVectors,
    lists: Int[np.ndarray, "list k"],
    *,
    draws: int = DRAWS,
    seed: int = 0,
    only_below: float = 1.0,
) -> Coherence:
    """Measure the coherence of lists of tokens.

    In a random list, every token is replaced by one of nearly the same frequency: one of the 50 tokens before or after
    it in the order of frequency (in small vocabularies, a twentieth of the vocabulary instead of 50).

    Args:
        contexts: the context vectors.
        lists: token ids; negative ones are ignored.
        draws: number of random lists for each list.
        seed: the seed of the random lists.
        only_below: stop comparing a list when its p-value is certain to be above this; its p-value is then 1 and its
            similarity NaN. Results for other lists do not change.

    Memory: 4,096 * k * dim floats.
    """
    known = np.flatnonzero(contexts.known)
    has_vector = np.where(lists >= 0, contexts.known[lists.clip(0)], False)
    n = has_vector.sum(axis=1)
    judged = n >= MIN_TOKENS
    similarity, expected, p = np.full(len(lists), np.nan), np.full(len(lists), np.nan), np.ones(len(lists))
    if not judged.any():
        return Coherence(similarity, expected, p)
    # Tokens without a vector are mapped to an extra last row of zeros, which adds nothing to a sum of vectors.
    table = np.concatenate([contexts.vectors, np.zeros_like(contexts.vectors[:1])])
    ids = np.where(has_vector, lists, len(contexts.vectors))[judged]
    observed = _similarity(table, ids, n[judged])
    by_frequency = known[np.argsort(contexts.counts[known], kind="stable")]
    reach = max(1, min(50, len(by_frequency) // 20))
    rng = np.random.default_rng(seed)
    total, reached = np.zeros(len(ids)), np.zeros(len(ids))
    left, sizes = np.arange(len(ids)), n[judged]
    for draw in range(draws):
        steps = rng.integers(1, reach + 1, len(by_frequency)) * rng.choice((-1, 1), len(by_frequency))
        place = np.arange(len(by_frequency)) + steps
        place = np.where((place < 0) | (place >= len(by_frequency)), np.arange(len(by_frequency)) - steps, place)
        other = np.arange(len(table))
        other[by_frequency] = by_frequency[place.clip(0, len(by_frequency) - 1)]
        if draw % _BETWEEN == 0:
            left = left[(1 + reached[left]) / (1 + draws) <= only_below]
        drawn = _similarity(table, other[ids[left]], sizes[left])
        total[left] += drawn
        reached[left] += drawn >= observed[left]
    rows = np.flatnonzero(judged)[left]
    similarity[rows], expected[rows] = observed[left], total[left] / draws
    p[rows] = (1 + reached[left]) / (1 + draws)
    return Coherence(similarity, expected, p)


def _similarity(
    table: Float[np.ndarray, "rows dim"], ids: Int[np.ndarray, "list k"], n: Int[np.ndarray, " list"]
) -> Float[np.ndarray, " list"]:
    """Return the mean cosine of all pairs in each list: (|sum of its n unit vectors|^2 - n) / (n (n - 1))."""
    if not len(ids):
        return np.zeros(0)
    squared = [
        (table[ids[start : start + _ROWS]].sum(axis=1, dtype=np.float64) ** 2).sum(axis=1)
        for start in range(0, len(ids), _ROWS)
    ]
    return (np.concatenate(squared) - n) / (n * (n - 1))

"""How many values of a model are coherent, compared with random vectors: a score that needs no reader.

`python -m tools.value_coherence MODEL... --text models/text/train.npz --counts models/token_counts.json`

A value's 20 top tokens are coherent if they occur in similar contexts of the training text. Contexts are a token's
neighbours within four places, as positive pointwise mutual information reduced to 100 dimensions; similarity is the
cosine there, less what tokens of the same frequencies have on average, so that frequent words do not pass for a theme.
The score of a set is the mean over its pairs. A value counts when it scores above the 95th percentile of random
vectors.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.linalg import svds
from transformers import GPT2LMHeadModel

N_BINS = 24


def contexts(tokens: np.ndarray, d_vocab: int, *, reach: int = 4, dims: int = 100) -> np.ndarray:
    """Unit vectors (d_vocab, dims) of the contexts in which tokens occur; zero for tokens that never occur.

    Source: Levy, Goldberg and Dagan 2015, "Improving Distributional Similarity", PPMI with smoothed contexts and SVD.
    """
    counts = coo_matrix((d_vocab, d_vocab)).tocsr()
    for distance in range(1, reach + 1):
        left, right = tokens[:-distance].astype(np.int64), tokens[distance:].astype(np.int64)
        keys, times = np.unique(left * d_vocab + right, return_counts=True)
        counts = counts + coo_matrix((times, np.divmod(keys, d_vocab)), shape=(d_vocab, d_vocab)).tocsr()
    counts = (counts + counts.T).tocoo()
    rows = np.asarray(counts.sum(1)).ravel()
    columns = rows**0.75
    information = np.log(counts.data * columns.sum() / (rows[counts.row] * columns[counts.col]))
    positive = information > 0
    ppmi = coo_matrix(
        (information[positive], (counts.row[positive], counts.col[positive])), shape=(d_vocab, d_vocab)
    ).tocsr()
    u, s, _ = svds(ppmi.astype(np.float32), k=dims, rng=0)
    vectors = u * np.sqrt(s)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


class Coherence:
    """Mean similarity of a set of tokens, corrected for their frequencies."""

    def __init__(self, vectors: np.ndarray, counts: np.ndarray, *, least: int) -> None:
        self.vectors = vectors
        self.may_show = (counts >= least) & (np.arange(len(counts)) > 256)
        order = np.argsort(counts[self.may_show], kind="stable")
        self.bin = np.zeros(len(counts), dtype=np.int64)
        self.bin[np.flatnonzero(self.may_show)[order]] = np.arange(len(order)) * N_BINS // len(order)
        means = np.stack([vectors[self.may_show & (self.bin == b)].mean(0) for b in range(N_BINS)])
        self.expected = means @ means.T

    def __call__(self, tokens: np.ndarray) -> float:
        """Of one set of token ids."""
        vectors, bins = self.vectors[tokens], self.bin[tokens]
        excess = vectors @ vectors.T - self.expected[bins][:, bins]
        n = len(tokens)
        return float((excess.sum() - np.trace(excess)) / (n * (n - 1)))

    def of_vectors(self, vectors: torch.Tensor, unembedding: torch.Tensor, *, top: int = 20) -> np.ndarray:
        """Of the `top` tokens of each vector (n, d_model)."""
        hidden = torch.from_numpy(~self.may_show)
        scores = (vectors @ unembedding.T).masked_fill(hidden, -torch.inf)
        return np.array([self(row) for row in scores.topk(top).indices.numpy()])


def judged(model_folder: Path, coherence: Coherence, *, seed: int = 0) -> dict[str, float]:
    """Scores of the values of the upper half of the layers, and of as many random vectors of the same lengths."""
    model = GPT2LMHeadModel.from_pretrained(model_folder, dtype=torch.float32)
    layers = list(model.transformer.h)
    values = torch.cat([layer.get_parameter("mlp.c_proj.weight").detach() for layer in layers[len(layers) // 2 :]])
    unembedding = model.lm_head.weight.detach()[: len(coherence.may_show)]  # the matrix may have rows without a token
    drawn = torch.randn(values.shape, generator=torch.Generator().manual_seed(seed))
    drawn = drawn / drawn.norm(dim=1, keepdim=True) * values.norm(dim=1, keepdim=True)
    real, random = (coherence.of_vectors(vectors, unembedding) for vectors in (values, drawn))
    line = np.quantile(random, 0.95)
    return {
        "values": len(values),
        "mean of values": float(real.mean()),
        "mean of random vectors": float(random.mean()),
        "share above the 95th percentile of random": float((real > line).mean()),
    }


def main() -> None:
    """Print one line of JSON for each model."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="the encoded training text")
    parser.add_argument("--counts", type=Path, required=True, help="token_counts.json")
    parser.add_argument("--tokens", type=int, default=8_000_000, help="how much of the text to take contexts from")
    parser.add_argument("--least", type=int, default=100, help="tokens that occur less often are left out")
    parser.add_argument("--cache", type=Path, help="a file to keep the contexts in")
    given = parser.parse_args()
    counts = np.array(json.loads(given.counts.read_text()))
    if given.cache is not None and given.cache.exists():
        vectors = np.load(given.cache)
    else:
        with np.load(given.text) as file:
            vectors = contexts(file["tokens"][: given.tokens], len(counts))
        if given.cache is not None:
            np.save(given.cache, vectors)
    coherence = Coherence(vectors, counts, least=given.least)
    for folder in given.models:
        print(json.dumps({"model": str(folder)} | judged(folder, coherence)), flush=True)


if __name__ == "__main__":
    main()

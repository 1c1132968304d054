"""Windows of tokens in a fixed random order, so that batch n of a seed is always the same batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# How often a document of a source is read in one pass. Stories and recipes repeat names of concrete things, on which
# memories become readable; prompts resemble an encyclopedia; long abstract prose is thinned.
PASSES = {
    "tinystories": 2.0,
    "storybooks": 2.0,
    "recipes": 2.0,
    "wikipedia": 1.15,
    "openstax": 0.85,
    "wikinews": 0.85,
    "books": 0.85,
    "speeches": 0.7,
    "factbook": 0.7,
    "usgov": 0.7,
}


@dataclass(frozen=True)
class EncodedCorpus:
    """Documents as one sequence of token ids, each ended by the end-of-text token."""

    tokens: np.ndarray
    lengths: np.ndarray
    sources: np.ndarray
    n_bytes: np.ndarray
    vocabulary: str = ""  # SHA-256 of the tokenizer's file


class Windows:
    """Batches of `rows` windows of `width` + 1 tokens; the state is the pass and the number of the next batch."""

    def __init__(
        self, corpus: EncodedCorpus, *, rows: int, width: int, seed: int, pass_: int = 0, place: int = 0
    ) -> None:
        """Begin at batch `place` of pass `pass_`."""
        self.corpus, self.rows, self.width, self.seed = corpus, rows, width, seed
        self.pass_, self.place = pass_, place
        self._lay_out()

    def next(self) -> Tensor:
        """The next batch (rows, width + 1); neighbours share one token, so that every token is predicted once."""
        if (self.place + 1) * self.rows > len(self._starts):
            self.pass_, self.place = self.pass_ + 1, 0
            self._lay_out()
        starts = self._starts[self.place * self.rows : (self.place + 1) * self.rows]
        self.place += 1
        return torch.from_numpy(self._line[starts[:, None] + np.arange(self.width + 1)].astype(np.int64))

    def _lay_out(self) -> None:
        """Order the documents and the windows of this pass; depends on the seed and the pass only."""
        rng = np.random.default_rng([self.seed, self.pass_])
        corpus = self.corpus
        passes = np.array([PASSES.get(str(source), 1.0) for source in corpus.sources])
        copies = np.floor(passes + rng.random(len(passes))).astype(np.int64)
        order = rng.permutation(np.repeat(np.arange(len(passes)), copies))
        begin = np.concatenate([[0], np.cumsum(corpus.lengths)])
        self._line = np.concatenate([corpus.tokens[begin[i] : begin[i + 1]] for i in order])
        n_windows = (len(self._line) - 1) // self.width
        self._starts = rng.permutation(n_windows) * self.width


def repeated(windows: Tensor, n_rows: int, periods: tuple[int, int], seed: list[int]) -> Tensor:
    """The windows, with the first `n_rows` changed to repeat their first tokens.

    The number of tokens repeated is drawn between `periods`, uniformly in its logarithm, and is never above half a
    window. Induction heads need repeated text, of which this corpus has little within a short window.
    """
    if not n_rows:
        return windows
    rng, width = np.random.default_rng(seed), windows.shape[1]
    shortest, longest = periods[0], min(periods[1], width // 2)
    windows = windows.clone()
    for row in range(n_rows):
        period = round(float(np.exp(rng.uniform(np.log(shortest), np.log(longest)))))
        windows[row] = windows[row, torch.arange(width) % period]
    return windows

"""Find concepts in lists of top tokens: classes to which more of a list's tokens belong than chance explains.

In a list of n tokens drawn at random from a vocabulary of V tokens, the number k of tokens from a class of size K has a
hypergeometric distribution. A class is a concept of a list if at least four of the list's tokens belong to it (Geva et
al. 2022, appendix A.2), and if the probability of k or more such tokens, times the number of classes, is below
`MAX_EXPECTED`. This bounds the mean number of concepts in a list of random tokens. Classes are nested, so the bound is
loose. If several classes share nearly the same tokens of the list, only the least probable one is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.concepts.token_classes import COUNTED, MIN_TOKENS, Classes

MAX_EXPECTED = 1.0
"""Upper bound on the mean number of concepts found in a list of random tokens; the mean itself is smaller (0.02 for the
shipped model wren)."""
DUPLICATE_OVERLAP = 0.6
"""Two classes are the same concept if they share more than this fraction of the union of their tokens."""


@dataclass(frozen=True)
class Concept:
    """A class to which several tokens of a list belong."""

    name: str
    kind: str
    """semantic, syntactic, names, stopwords, form or embedding; see `unembed.concepts.token_classes`."""
    members: tuple[int, ...]
    """Ids of the list's tokens that belong to the class, in the order of the list."""
    score: float
    """-log10 of the expected number of classes that are at least as significant in a list of random tokens."""
    evidence: str
    class_size: int
    """Number of tokens of the whole vocabulary in the class."""

    @property
    def counted(self) -> bool:
        """Whether the papers count classes of this kind as concepts; they do not count stop words, for example."""
        return self.kind in COUNTED


def find_concepts(
    classes: Classes, ids: Int[Tensor, "list n"] | Int[np.ndarray, "list n"], *, max_expected: float = MAX_EXPECTED
) -> list[list[Concept]]:
    """Return the concepts of each list of tokens, most significant first.

    Args:
        classes: the classes of the model's vocabulary.
        ids: token ids, one list in each row; the papers use the top 30 tokens of a value vector.
        max_expected: upper bound on the mean number of concepts in a list of random tokens.
    """
    rows = torch.as_tensor(ids).cpu().numpy()
    return [_in_list(classes, row, max_expected) for row in rows]


def _in_list(classes: Classes, ids: Int[np.ndarray, " n"], max_expected: float) -> list[Concept]:
    of_token = [classes.of(int(token)) for token in ids]
    occurrences = np.concatenate(of_token)
    rank = np.repeat(np.arange(len(ids)), [len(row) for row in of_token])
    numbers, counts = np.unique(occurrences, return_counts=True)
    enough = counts >= MIN_TOKENS
    numbers, counts = numbers[enough], counts[enough]
    if not len(numbers):
        return []
    n_named = len(classes.names)
    tails = np.array(
        [
            log10_tail(len(classes.tokens), int(classes.sizes[c]), len(ids), int(k))
            for c, k in zip(numbers, counts, strict=True)
        ]
    )
    scores = -(tails + np.log10(n_named))
    chosen: list[tuple[set[int], Concept]] = []
    for i in np.argsort(-scores, kind="stable"):
        if scores[i] < -np.log10(max_expected):
            break
        number = int(numbers[i])
        members = set(rank[occurrences == number].tolist())
        kind = classes.kinds[number]
        if any(_same(members, other) and (concept.counted or kind not in COUNTED) for other, concept in chosen):
            continue
        tokens = tuple(int(ids[p]) for p in sorted(members))
        concept = Concept(
            classes.names[number],
            kind,
            tokens,
            float(scores[i]),
            classes.evidence[number],
            int(classes.sizes[number]),
        )
        chosen.append((members, concept))
    return [concept for _, concept in chosen]


def _same(a: set[int], b: set[int]) -> bool:
    return len(a & b) > DUPLICATE_OVERLAP * len(a | b)


@cache
def log10_tail(population: int, marked: int, drawn: int, at_least: int) -> float:
    """Return log10 of the hypergeometric probability of at least `at_least` marked items in a sample.

    The sample has `drawn` items, drawn without replacement from `population` items, `marked` of which are marked.
    """
    k = np.arange(at_least, min(marked, drawn) + 1)
    if not len(k):
        return -np.inf
    logs = _log_choose(marked, k) + _log_choose(population - marked, drawn - k) - _log_choose(population, drawn)
    top = logs.max()
    return float((top + np.log(np.exp(logs - top).sum())) / np.log(10))


def _log_choose(n: int, k: int | Int[np.ndarray, " m"]) -> Float[np.ndarray, "*m"]:
    size = torch.as_tensor(np.asarray(k, dtype=np.float64))
    n_ = torch.tensor(float(n), dtype=torch.float64)
    out = torch.lgamma(n_ + 1) - torch.lgamma(size + 1) - torch.lgamma((n_ - size).clamp_min(0) + 1)
    return torch.where((size <= n_) & (size >= 0), out, -torch.inf).numpy()

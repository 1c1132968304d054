"""Represent a text as a set of hashed n-grams: words, pairs of words, and pieces of 3 to 5 letters inside a word.

The hash is CRC-32, which is the same on every machine and in every version of Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from zlib import crc32

import numpy as np
from jaxtyping import Float64, Int64

_WORD = re.compile(r"[^\W_]+(?:['’*@$#][^\W_]+)*|[!?]+")
_RUN = re.compile(r"(.)\1{2,}")
SIZES = (3, 4, 5)


def words_in(text: str) -> list[str]:
    """Return the words in lower case; three or more equal letters become two, and runs of ! and ? count as words."""
    return _WORD.findall(_RUN.sub(r"\1\1", text.lower()))


def ngrams(text: str) -> Iterator[str]:
    """Yield all n-grams of a text, with repetitions, as the strings that are hashed."""
    words = words_in(text)
    for word in words:
        yield f"w {word}"
        marked = f"<{word[:30]}>"
        for size in SIZES:
            for start in range(len(marked) - size + 1):
                yield marked[start : start + size]
    for first, second in pairwise(words):
        yield f"p {first} {second}"


def features(texts: Sequence[str], bits: int) -> tuple[Int64[np.ndarray, " entry"], Int64[np.ndarray, " bound"]]:
    """Return the distinct n-gram hashes (below 2 ** bits) of all texts in one array.

    The second array has for each text the index in the first array at which its hashes start, and as last entry the
    first array's length.
    """
    mask = (1 << bits) - 1
    columns: list[np.ndarray] = []
    bounds = [0]
    for text in texts:
        found = np.array(sorted({crc32(gram.encode()) & mask for gram in ngrams(text)}), dtype=np.int64)
        columns.append(found)
        bounds.append(bounds[-1] + len(found))
    flat = np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)
    return flat, np.array(bounds, dtype=np.int64)


def margins(texts: Sequence[str], weights: Float64[np.ndarray, " column"], bias: float) -> Float64[np.ndarray, " text"]:
    """Return each text's score: the sum of its n-grams' weights over the square root of their number, plus the bias."""
    bits = len(weights).bit_length() - 1
    columns, bounds = features(texts, bits)
    sums = np.concatenate([[0.0], np.cumsum(weights[columns])])
    counts = np.maximum(np.diff(bounds), 1)
    return (sums[bounds[1:]] - sums[bounds[:-1]]) / np.sqrt(counts) + bias

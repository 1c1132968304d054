"""Measure how similar two words are, by WordNet and by the token embedding.

The report uses this for examples in which the last layer's output has another top token than its two inputs.

Source of the WordNet measure: Lin 1998, 2 IC(common) / (IC(a) + IC(b)), with information content as in
`unembed.concepts.wordnet`. The paper's authors judged 100 cases by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Int

from unembed.concepts.token_cleaning import clean
from unembed.concepts.wordnet import wordnet
from unembed.models.decoder import Decoder

RELATED = 0.5
"""Smallest Lin similarity of words that count as related."""
WINDOW = 0.05
"""Random pairs have frequency ranks within this share of the vocabulary above or below those of the pair."""
_PAIRS = 2000


@cache
def lin(a: str, b: str) -> float | None:
    """Return the largest Lin similarity (0 to 1) over the senses of two lower-case words.

    Inflected forms of one word, and words with a common sense, have similarity 1. None if a word is not in WordNet.
    """
    net = wordnet()
    senses = [net.senses(word) for word in (a, b)]
    if not all(senses):
        return None
    if a == b or set(senses[0]) & set(senses[1]):
        return 1.0
    information, best = net.information, 0.0
    above = [{sense: net.ancestors(sense) for sense in found} for found in senses]
    for s, over_s in above[0].items():
        for t, over_t in above[1].items():
            common = over_s & over_t
            total = float(information[s] + information[t])
            if common and total > 0:
                best = max(best, 2 * max(float(information[c]) for c in common) / total)
    return min(best, 1.0)


def by_wordnet(lm: Decoder, first: Sequence[int], second: Sequence[int]) -> Float[np.ndarray, " pair"]:
    """Return the Lin similarity of pairs of tokens; NaN if a token is not a whole word or not in WordNet."""
    words = [token.word for token in clean(lm.token_strings(range(lm.d_vocab)))]
    out = []
    for a, b in zip(first, second, strict=True):
        left, right = words[a], words[b]
        found = None if left is None or right is None else lin(left, right)
        out.append(np.nan if found is None else found)
    return np.array(out, dtype=np.float64)


@torch.no_grad()
def cosines(
    lm: Decoder, first: Int[np.ndarray, " pair"], second: Int[np.ndarray, " pair"]
) -> Float[np.ndarray, " pair"]:
    """Return the cosine of the embeddings of pairs of tokens."""
    embed = lm.hf.get_input_embeddings()
    rows = [embed(torch.from_numpy(np.asarray(ids, dtype=np.int64)).to(lm.device)).float() for ids in (first, second)]
    return torch.nn.functional.cosine_similarity(*rows, dim=-1).cpu().numpy().astype(np.float64)


def share_of_closer(
    lm: Decoder,
    first: Int[np.ndarray, " pair"],
    second: Int[np.ndarray, " pair"],
    cosine: Float[np.ndarray, " pair"],
    counts: Int[np.ndarray, " d_vocab"],
    seed: int,
) -> Float[np.ndarray, " pair"]:
    """Return for each pair the share of random pairs of similar frequency whose embeddings are less similar.

    Embeddings of frequent tokens are close to each other whatever the tokens mean. A pair is therefore compared with
    pairs whose tokens have similar frequency ranks: at most the share `WINDOW` of the vocabulary above or below. Tokens
    that the model never learned are left out.
    """
    known = np.flatnonzero(~lm.unlearned.cpu().numpy())
    order = known[np.argsort(-counts[known], kind="stable")]
    rank = np.full(lm.d_vocab, len(order) // 2, dtype=np.int64)
    rank[order] = np.arange(len(order))
    half = max(10, round(WINDOW * len(order)))
    random = np.random.default_rng([seed, 11])
    shares = np.zeros(len(first))
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        near = [rank[token] + random.integers(-half, half + 1, _PAIRS) for token in (a, b)]
        pairs = [order[np.clip(places, 0, len(order) - 1)] for places in near]
        differ = pairs[0] != pairs[1]
        shares[i] = (cosines(lm, pairs[0][differ], pairs[1][differ]) < cosine[i]).mean()
    return shares

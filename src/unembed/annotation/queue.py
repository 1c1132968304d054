"""The annotation task of the papers: people look for patterns in what a memory (FFN neuron) fires on or promotes.

- For a key (Geva et al. 2021, section 3), they see the 25 texts on which it fires most. A pattern is something that at
  least 3 of the texts share; it is shallow (a word, an n-gram) or semantic (a topic, a construction).
- For a value vector (Geva et al. 2022, section 4), they see its 30 top tokens with WordNet definitions. A pattern is
  something that at least 4 of the tokens share; it is semantic, syntactic or of names.

The task is blind: value vectors are mixed with vectors drawn at random with the mean and standard deviation of the
layer's value vectors, and annotators cannot tell which is which. Each pattern is stored as one label; "no pattern" is a
label as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.annotation.rules import RULES
from unembed.concepts.value_concepts import sample_memories
from unembed.concepts.wordnet import wordnet
from unembed.lens import read
from unembed.memories.norm_overlap import vectors_like
from unembed.memories.values import written_values
from unembed.models.decoder import Decoder

What = Literal["key", "value", "random value"]
_AT_ONCE = 128
"""Number of vectors that are multiplied with the unembedding at a time, to limit memory."""

_SAMPLED = 1024
"""Approximate number of embeddings from which the principal components are computed."""


@dataclass(frozen=True)
class Item:
    """One item to annotate. `index` is the index of a memory in its layer, or the number of a random vector."""

    number: int
    what: What
    layer: int
    index: int


def annotation_queue(
    lm: Decoder, what: Literal["key", "value"], *, per_layer: int = 10, random_per_layer: int = 5, seed: int = 0
) -> list[Item]:
    """Return the items to annotate, in a random order that depends only on the seed.

    Args:
        what: "key" or "value".
        per_layer: number of memories to draw from each layer.
        random_per_layer: number of random vectors to add for each layer; for "value" only.
        seed: the seed of the draw and of the order.

    Raises:
        Unsupported: the model has no memories.
    """
    items: list[tuple[What, int, int]] = [(what, n, i) for n, i in sample_memories(lm, per_layer, seed)]
    if what == "value":
        random: What = "random value"
        items.extend((random, n, i) for n in range(lm.n_layers) for i in range(random_per_layer))
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(seed + 1)).tolist()
    return [Item(number, *items[i]) for number, i in enumerate(order)]


@torch.no_grad()
def tokens_of_items(lm: Decoder, items: Sequence[Item], seed: int = 0) -> Int[Tensor, "item k"]:
    """Return the ids of the top tokens of value vectors and random vectors, in the raw basis.

    Tokens that the model never learned are left out. The unembedding is read once for every `_AT_ONCE` items.
    """
    found = [
        read(
            lm,
            torch.cat([_vector(lm, item, seed) for item in items[start : start + _AT_ONCE]]),
            RULES["value"].shown,
            basis="raw",
            hidden=lm.unlisted,
        ).ids
        for start in range(0, len(items), _AT_ONCE)
    ]
    return torch.cat(found)


def _vector(lm: Decoder, item: Item, seed: int) -> Float[Tensor, "1 d_model"]:
    """Return a value vector, or a random one with the mean and standard deviation of the layer's value vectors."""
    if item.what != "random value":
        layer, index = lm.memory(item.layer, item.index)
        return written_values(lm, layer, torch.tensor([index]))
    layer = lm.layer(item.layer)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + layer * 10_007 + item.index)
    return vectors_like(written_values(lm, layer).float(), 1, generator).to(lm.dtype)


@torch.no_grad()
def nameable_first(lm: Decoder, shown: Sequence[Int[Tensor, " _"]]) -> list[int]:
    """Order lists of token ids by how likely they have a pattern; return their indices, most likely first.

    A list is likely to have a pattern if its tokens are similar words. Similarity is the mean cosine of two token
    embeddings. The mean embedding and the two largest principal components, which mostly depend on how frequent a token
    is, are subtracted first (Mu and Viswanath 2018). The similarity is multiplied by the share of tokens that WordNet
    defines, because pieces of words are similar too, but have no common name. Lists of random vectors are ordered in
    the same way, so that an annotator cannot recognise them by their rank.
    """
    embedding = lm.weights.W_E
    mean = embedding.mean(dim=0, dtype=torch.float32)
    some = embedding[:: max(1, len(embedding) // _SAMPLED)].float() - mean
    common = torch.nn.functional.normalize(torch.linalg.eigh(some @ some.T).eigenvectors[:, -2:].T @ some, dim=-1)

    def alike(ids: Int[Tensor, " k"]) -> float:
        rows = embedding[ids].float() - mean
        unit = torch.nn.functional.normalize(rows - rows @ common.T @ common, dim=-1)
        cosine = float(unit.sum(dim=0).square().sum() - len(ids)) / max(len(ids) * (len(ids) - 1), 1)
        defined = sum(text is not None for text in definitions(lm.token_strings(ids.tolist())))
        return cosine * defined / max(len(ids), 1)

    by_place = [alike(ids) for ids in shown]
    return sorted(range(len(shown)), key=lambda place: -by_place[place])


def definitions(tokens: Sequence[str]) -> list[str | None]:
    """Return the WordNet definition of each token; None if it is not a word or WordNet has no definition."""
    net = wordnet()
    return [net.definition(word) if (word := token.strip()).isalpha() and len(word) > 1 else None for token in tokens]

"""Find concepts among the top tokens of value vectors, or of any vectors of the residual stream.

Source: Geva et al. 2022, section 4 (10 random value vectors of each layer, their 30 top tokens in the raw basis).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.concepts.class_files import embedding_clusters, vocabulary_classes
from unembed.concepts.detection import MAX_EXPECTED, Concept, find_concepts
from unembed.concepts.token_classes import COUNTED, KINDS, Classes
from unembed.errors import InvalidInput
from unembed.jacobian.basis import basis_or_default, in_basis
from unembed.lens import read
from unembed.memories.clustering.value_clusters import cluster
from unembed.memories.values import values_of
from unembed.models.decoder import Decoder, require_decoder
from unembed.names import Basis, MemoryIndex, Pole, ReadPoles, SignedMemory, read_signed_memory
from unembed.results import Displayed, Provenance, Table
from unembed.validation import as_pair, as_tuple, one_of, positive_int, valid_seed

TOP = 30
"""Number of top tokens of a vector (as in the papers)."""
LARGEST_CLUSTERED = 20_000
"""Largest vocabulary for which clusters of token embeddings are added as classes by default."""
_PER_CLUSTER = 20


def model_classes(lm: Decoder, embedding: bool | None = None) -> Classes:
    """Return the classes that the tokens of a model's vocabulary belong to; they are computed once and cached.

    Args:
        embedding: whether to add clusters of token embeddings (rows of W_E; average linkage, cosine, 20 tokens in a
            cluster on average) as classes; when None, only if the vocabulary has at most `LARGEST_CLUSTERED` tokens.

    Raises:
        InvalidInput: the model has no tokenizer.
    """
    wanted = lm.d_vocab <= LARGEST_CLUSTERED if embedding is None else embedding

    def classes() -> Classes:
        found = vocabulary_classes(lm.vocabulary.strings(torch.arange(lm.d_vocab)))
        if not wanted:
            return found
        W_E = lm.weights.W_E.detach().float().cpu()
        n_clusters = max(1, lm.d_vocab // _PER_CLUSTER)
        return found.with_neighbours(embedding_clusters(W_E.numpy(), lambda: cluster(W_E, n_clusters).numpy()))

    return lm.once((__name__, wanted), classes)


@dataclass(frozen=True, eq=False, repr=False)
class VectorConcepts(Displayed):
    """The top tokens of some vectors, and the concepts found among them."""

    lm: Decoder
    labels: tuple[str, ...]
    """A name for each vector: `L5M733`, `random 3`."""
    layers: tuple[int | None, ...]
    """The layer of each vector; None for a vector of no layer."""
    ids: Int[np.ndarray, "vector k"]
    concepts: tuple[tuple[Concept, ...], ...]
    seed: int | None
    basis: Basis = "raw"
    show_unlearned: bool = False

    def coverage(self, kinds: Sequence[str] = COUNTED) -> Float[np.ndarray, " vector"]:
        """Return, for each vector, the share of its top tokens that belong to a concept of these kinds."""
        n = self.ids.shape[1]
        return np.array([len({t for c in found if c.kind in kinds for t in c.members}) / n for found in self.concepts])

    def number(self, kinds: Sequence[str] = COUNTED) -> Int[np.ndarray, " vector"]:
        """Return, for each vector, its number of concepts of these kinds."""
        return np.array([sum(c.kind in kinds for c in found) for found in self.concepts])

    def to_table(self) -> Table:
        """Return a table with one row for each concept of each vector: kind, score, its tokens, evidence."""
        names = ("vector", "layer", "concept", "kind", "score", "n_tokens", "class_size", "tokens", "evidence")
        rows = []
        for label, layer, found in zip(self.labels, self.layers, self.concepts, strict=True):
            for c in found:
                texts = self.lm.token_strings(list(c.members))
                rows.append((label, layer, c.name, c.kind, c.score, len(texts), c.class_size, texts, c.evidence))
        return Table.of_rows(f"Concepts in the top {self.ids.shape[1]} tokens", names, rows, self.provenance)

    def by_layer(self) -> Table:
        """Return a table by layer: mean share of top tokens in a concept (also by kind), and concepts per vector."""
        layers = sorted(set(self.layers), key=lambda layer: -1 if layer is None else layer)
        at = np.array(self.layers)
        columns: dict[str, list] = {"layer": layers, "vectors": [int((at == n).sum()) for n in layers]}
        shown = {"in_a_concept": COUNTED, "with_stopwords": (*COUNTED, "stopwords"), **{k: (k,) for k in KINDS}}
        for name, kinds in shown.items():
            share = self.coverage(kinds)
            columns[name] = [float(share[at == n].mean()) for n in layers]
        number = self.number()
        columns["concepts_per_vector"] = [float(number[at == n].mean()) for n in layers]
        title = f"Share of the top {self.ids.shape[1]} tokens that belong to a concept, by layer"
        return Table(title, columns, self.provenance)

    @property
    def provenance(self) -> Provenance:
        """What the concepts were computed from: model, basis, seed, number of top tokens, kinds that count."""
        notes = {"top": int(self.ids.shape[1]), "counted": list(COUNTED), "show_unlearned": self.show_unlearned}
        return self.lm.provenance(basis=self.basis, seed=self.seed, notes=notes)


@torch.no_grad()
def vector_concepts(
    lm: Decoder,
    vectors: Float[Tensor, "vector d_model"],
    labels: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    *,
    top: int = TOP,
    basis: Basis | None = None,
    seed: int | None = None,
    embedding: bool | None = None,
    max_expected: float = MAX_EXPECTED,
    show_unlearned: bool = False,
) -> VectorConcepts:
    """Find the concepts among the top tokens of any vectors of the residual stream.

    Args:
        labels: a name for each vector; numbers when None.
        layers: the layer of each vector; None if they belong to no layer.
        top: number of top tokens of each vector.
        basis: "raw" (the product with W_U), "final" (after the final norm) or "jacobian" (mapped by the model's fitted
            lens from resid_post of their layers); when None, "jacobian" if the model has a lens and layers are given,
            else "raw".
        seed: the seed with which the vectors were drawn, to record it in the provenance.
        embedding: see `model_classes`.
        max_expected: see `find_concepts`.
        show_unlearned: include tokens that the model never learned; by default they are left out.
    """
    if top < 1:
        raise InvalidInput(f"the top {top} tokens", why="at least one token is needed")
    hidden = None if show_unlearned else lm.unlisted
    basis = basis_or_default(lm, basis, "raw") if layers is not None or basis is not None else "raw"
    vectors, plain = _carried(lm, vectors.to(lm.dtype), layers, basis)
    ids = read(lm, vectors, top, basis=plain, hidden=hidden).ids.cpu()
    found = find_concepts(model_classes(lm, embedding), ids, max_expected=max_expected)
    named = tuple(labels) if labels is not None else tuple(str(i) for i in range(len(ids)))
    placed = tuple(layers) if layers is not None else (None,) * len(ids)
    rows = tuple(tuple(row) for row in found)
    return VectorConcepts(lm, named, placed, ids.numpy(), rows, seed, basis, show_unlearned)


def _carried(
    lm: Decoder, vectors: Float[Tensor, "vector d_model"], layers: Sequence[int] | None, basis: Basis
) -> tuple[Float[Tensor, "vector d_model"], Basis]:
    """Return the vectors and the basis in which to project them to tokens.

    With "jacobian", the fitted lens maps the vectors, and the mapped vectors are projected in the basis "raw".
    """
    if basis != "jacobian":
        return vectors, basis
    if layers is None:
        raise InvalidInput("basis 'jacobian'", why="the lens needs the layer of each vector", instead="Pass layers")
    at, found = torch.tensor(layers), torch.empty_like(vectors)
    for layer in at.unique().tolist():
        rows = (at == layer).nonzero()[:, 0].to(vectors.device)
        found[rows] = in_basis(lm, vectors[rows], layer, basis)[0]
    return found, "raw"


def sample_memories(
    lm: Decoder, per_layer: int, seed: int, layers: Sequence[int] | None = None
) -> list[tuple[int, int]]:
    """Draw `per_layer` memories (FFN neurons) at random from each layer, without replacement, or all if it has fewer.

    Raises:
        InvalidInput: `per_layer` is less than 1.
        OutOfRange: a layer that the model does not have.
    """
    per_layer = positive_int("per_layer", per_layer)
    generator = torch.Generator().manual_seed(valid_seed(seed))
    chosen = []
    for n in range(lm.n_layers) if layers is None else layers:
        layer, _ = lm.memory(n, 0)
        drawn = torch.randperm(lm.weights.n_memories[layer], generator=generator)[:per_layer]
        chosen += [(layer, index) for index in sorted(drawn.tolist())]
    return chosen


def value_concepts(
    lm: Decoder,
    memories: Sequence[tuple[int, MemoryIndex] | SignedMemory | str] | None = None,
    *,
    per_layer: int = 10,
    layers: Sequence[int] | None = None,
    poles: ReadPoles = "both",
    seed: int = 0,
    top: int = TOP,
    basis: Basis | None = None,
    embedding: bool | None = None,
    show_unlearned: bool = False,
) -> VectorConcepts:
    """Find the concepts that memories (FFN neurons) promote, among the top tokens of their value vectors.

    In gated layers, coefficients have either sign, so by default both the value vector and its negation are analysed.

    Args:
        memories: layer and index of each, or a name: "L5M278" for both signs, "-L5M278" for the negative sign only. A
            random sample when None.
        per_layer: number of memories to draw from each layer.
        layers: the layers to draw from; all when None.
        poles: "both" signs, or "named" for one sign of each memory: positive unless its name has a minus sign.
        seed: the seed of the random sample.
        top: number of top tokens of each value vector.
        basis: "raw" (the papers' E v), "final" or "jacobian"; when None, "jacobian" where a lens is fitted, else "raw".
        embedding: whether to add clusters of token embeddings to the classes; see `model_classes`.
        show_unlearned: include tokens that the model never learned; by default they are left out.

    Raises:
        OutOfRange: a memory that the model does not have.
        Unsupported: the model has no memories.
        InvalidInput: the model has no tokenizer.
    """
    lm = require_decoder(lm)
    if memories is None:
        named = [SignedMemory(*one) for one in sample_memories(lm, per_layer, seed, layers)]
    else:
        named = [_named(one) for one in as_tuple("memories", memories)]
    read: list[tuple[tuple[int, int], Pole]] = [
        (lm.memory(*one.address), pole) for one in named for pole in _poles(lm, one, poles)
    ]
    if not read:
        raise InvalidInput("an empty list of memories", instead="Name at least one, or pass None to draw a sample")
    signs = torch.tensor([-1 if pole == "negative" else 1 for _, pole in read], device=lm.device)
    return vector_concepts(
        lm,
        values_of(lm, [memory for memory, _ in read]) * signs[:, None],
        [lm.memory_name(*memory, pole) for memory, pole in read],
        [layer for (layer, _), _ in read],
        top=top,
        basis=basis,
        seed=seed if memories is None else None,
        embedding=embedding,
        show_unlearned=show_unlearned,
    )


def _named(given: object) -> SignedMemory:
    if isinstance(given, str):
        return read_signed_memory(given)
    return given if isinstance(given, SignedMemory) else SignedMemory(*as_pair("memory", given))


def _poles(lm: Decoder, memory: SignedMemory, poles: str) -> tuple[Pole, ...]:
    """Return the signs of the coefficient at which a memory is analysed."""
    one_of("poles", poles, ("both", "named"))
    if poles == "named" or memory.pole == "negative" or not lm.is_signed(lm.layer(memory.layer)):
        return (memory.pole,)
    return get_args(Pole)

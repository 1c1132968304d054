"""The explorer's map of a model's memories (FFN neurons), with a point for each value vector.

A cluster of similar value vectors is drawn as an island, which is named by the tokens that they promote.

The map is computed once and stored in a file of the index, with the fingerprint of the weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from unembed.concepts.token_cleaning import CleanToken, clean
from unembed.concepts.word_lists import STOP_WORDS
from unembed.errors import UnembedError
from unembed.gallery import SAVED, Gallery, MemoryDescriptions, memory_gallery
from unembed.index.arrays import store_derived, stored_derived
from unembed.index.memory_search import search
from unembed.jacobian import lens_identity
from unembed.memories.value_map import ValueMap, value_map
from unembed.memories.values import Values
from unembed.models.decoder import Decoder

if TYPE_CHECKING:
    from unembed.index.index import Index

SCHEMA = "unembed.atlas/1"
FILE = "atlas.npz"
"""The name of the file in an index's folder with the map and the fingerprint of the weights."""
KINDS = ("words", "names", "function words", "word pieces", "numbers", "punctuation", "mixed")
"""Kinds of tokens. A value vector has the kind of at least half of its ten top tokens; "mixed" if there is no such
kind."""
_COUNTED, _SHOWN, _NAMING, _MATCHES = 10, 4, 3, 20_000
_ARRAYS = ("memory", "position", "cluster", "cosine", "centre", "radius", "n_values")


@dataclass(frozen=True)
class Island:
    """A cluster of similar value vectors, drawn as a disc on the map."""

    x: float
    y: float
    radius: float
    size: int
    """Number of value vectors shown on the island."""
    tokens: list[str]
    """Tokens that the island's value vectors promote more often than others do, the most distinctive first."""


@dataclass(frozen=True)
class Best:
    """A memory (FFN neuron) on the map that is also in the saved ranking of memories (the gallery)."""

    point: int
    """The memory's index in the lists of `AtlasView`."""
    name: str
    """The memory's name, with a minus sign if its negative coefficients are described."""
    rank: int
    score: float
    description: str
    concept: str | None
    """What most of the promoted tokens have in common; None if they have no significant concept."""
    listed: bool
    """Whether the memory is not similar to any memory ranked above it (`Gallery.different`)."""
    truth: float | None
    """Correlation of the value vector's token scores with the change of the logits when it is added; None if
    unmeasured."""
    truth_control: float | None
    """99 % quantile of the absolute correlations of token scores with the changes that other value vectors cause."""


@dataclass(frozen=True)
class AtlasView:
    """All data of the map; the lists from `layer` to `top` have one entry for each value vector on it."""

    schema: str
    n_values: int
    """Number of value vectors of the model; a map of a large model shows only some of them."""
    layer: list[int]
    index: list[int]
    x: list[float]
    y: list[float]
    cluster: list[int]
    """The number of the value vector's island, from 0."""
    density: list[float] | None
    """Activation density over the index's corpus; None without an index of all layers."""
    kind: list[int]
    """The kind of the promoted tokens, as an index into `kinds`."""
    kinds: list[str]
    top: list[list[int]]
    """Ids of the tokens that the value vector promotes most."""
    tokens: dict[int, str]
    """The text of each id in `top`."""
    islands: list[Island]
    best: list[Best]
    """Memories of the saved gallery that are on the map, best first; empty if no gallery is saved."""
    provenance: dict[str, Any]
    best_lens: str = ""
    """A sentence that names the lens of the saved gallery and that of the model; empty if both are the same."""


@dataclass(frozen=True)
class AtlasMatches:
    """The memories (FFN neurons) that a search finds, as pairs of layer and index."""

    query: str
    memories: list[tuple[int, int]]
    total: int
    notes: list[str]


def atlas_view(
    lm: Decoder, index: Index | None = None, progress: Callable[[int, int], None] | None = None
) -> AtlasView:
    """Return the data of the map. Positions are read from the index's folder, or computed and stored there.

    Args:
        index: an index of the model; without one there is no activation density, and nothing is stored.
        progress: called with the number of steps done and their total while positions are computed; an exception that
            it raises ends the work.

    Raises:
        Unsupported: the model has no memories.
    """
    found = _map(lm, index, progress)
    layers, numbers = found.memory.T
    top = _top_tokens(lm, index, found.memory)
    shown = top[:, :_SHOWN]
    named = _naming(found, top, _special(lm))
    ids = sorted({*shown.ravel().tolist(), *(token for one in named for token in one)})
    texts = dict(zip(ids, lm.token_strings(ids), strict=True))
    sizes = np.bincount(found.cluster, minlength=len(found.centre)).tolist()
    circles = np.column_stack([found.centre, found.radius]).astype(float).round(5).tolist()
    islands = [
        Island(x, y, radius, size, [texts[token] for token in tokens])
        for (x, y, radius), size, tokens in zip(circles, sizes, named, strict=True)
    ]
    gallery = _gallery(lm, index)
    density = None
    if index is not None and all(index.manifest.layers[layer] for layer in np.unique(layers).tolist()):
        rows = index.bounds[layers] + numbers
        density = [round(float(x), 5) for x in index.statistics["active_fraction"][rows]]
    return AtlasView(
        SCHEMA,
        found.n_values,
        layers.tolist(),
        numbers.tolist(),
        found.position[:, 0].round(5).astype(float).tolist(),
        found.position[:, 1].round(5).astype(float).tolist(),
        found.cluster.tolist(),
        density,
        _kinds(lm, top).tolist(),
        list(KINDS),
        shown.tolist(),
        {i: texts[i] for i in np.unique(shown).tolist()},
        islands,
        _best(gallery, found.memory),
        found.provenance.to_dict(),
        "" if gallery is None else _lens(lm, gallery),
    )


def atlas_matches(
    lm: Decoder, index: Index | None, query: str, described: MemoryDescriptions | None = None
) -> AtlasMatches:
    """Return all memories (FFN neurons) that a query finds; see `unembed.index.memory_search` for its syntax."""
    found = search(lm, index, query, _MATCHES, described=described)
    pairs = [(hit.layer, hit.index) for hit in found.hits if hit.of == "memory"]
    return AtlasMatches(query, pairs, found.total, found.notes)


def _map(lm: Decoder, index: Index | None, progress: Callable[[int, int], None] | None) -> ValueMap:
    """Return the map that is stored with the index; if there is none, compute it and store it."""
    if index is not None and (stored := stored_derived(index.path / FILE, index.manifest.weights, _ARRAYS)):
        n_values = int(stored.pop("n_values"))
        notes = {"values": n_values, "shown": len(stored["memory"]), "clusters": len(stored["centre"])}
        return ValueMap(**stored, n_values=n_values, provenance=lm.provenance(seed=0, notes=notes))
    found = value_map(lm, also=[(row.layer, row.index) for row in _gallery(lm, index) or ()], progress=progress)
    if index is not None:
        arrays = {name: np.asarray(getattr(found, name)) for name in _ARRAYS}
        store_derived(index.path / FILE, index.manifest.weights, **arrays)
    return found


def _top_tokens(lm: Decoder, index: Index | None, memory: Int[np.ndarray, "point 2"]) -> Int[np.ndarray, "point k"]:
    found = np.empty((len(memory), min(_COUNTED, lm.d_vocab)), dtype=np.int64)
    stored = index if index is not None and index.is_read_by(lens_identity(lm)) else None
    if stored is not None and stored.readings[0].shape[1] < found.shape[1]:
        stored = None
    for layer in np.unique(memory[:, 0]).tolist():
        rows = np.flatnonzero(memory[:, 0] == layer)
        if stored is not None and stored.manifest.layers[layer]:
            found[rows] = stored.readings[0][stored.bounds[layer] + memory[rows, 1], : found.shape[1]]
            continue
        ids, _ = Values(lm).top(layer, memory[rows, 1].tolist(), found.shape[1])
        found[rows] = ids.cpu().numpy()
    return found


def _special(lm: Decoder) -> set[int]:
    """Return the ids of the tokenizer's special tokens, such as the end of a text or `<filename>`."""
    return set() if lm.tokenizer is None else set(lm.tokenizer.all_special_ids)


def _naming(found: ValueMap, top: Int[np.ndarray, "point k"], special: set[int]) -> list[list[int]]:
    """Return, for each island, the tokens that its value vectors promote more often than all value vectors do.

    A token's score is its count on the island times the log of the ratio of its frequencies on the island and on the
    whole map. A token is listed first on at most one island, the one with the highest score. Special tokens are left
    out.
    """
    everywhere = Counter(top.ravel().tolist())
    ranked: list[list[tuple[float, int]]] = []
    for number in range(len(found.centre)):
        rows = np.flatnonzero(found.cluster == number)
        counted, share = Counter(top[rows].ravel().tolist()), len(rows) / len(top)
        scores = {token: n * float(np.log(n / everywhere[token] / share)) for token, n in counted.items()}
        ranked.append(sorted(((-score, token) for token, score in scores.items() if token not in special)))
    taken: set[int] = set()
    named: list[list[int]] = [[] for _ in ranked]
    for number in sorted(range(len(ranked)), key=lambda n: ranked[n][:1]):
        tokens = [token for _, token in ranked[number][: 8 * _NAMING]]
        first = next((token for token in tokens if token not in taken), None)
        if first is not None:
            taken.add(first)
            tokens = [first, *(token for token in tokens if token != first)]
        named[number] = tokens[:_NAMING]
    return named


def _kind(token: CleanToken) -> int:
    if token.kind == "number":
        return KINDS.index("numbers")
    if token.kind == "punctuation":
        return KINDS.index("punctuation")
    if token.word is None:
        return KINDS.index("word pieces")
    if token.word in STOP_WORDS:
        return KINDS.index("function words")
    return KINDS.index("names" if token.capitalised else "words")


def _kinds(lm: Decoder, top: Int[np.ndarray, "point k"]) -> Int[np.ndarray, " point"]:
    """Return, for each point, the kind (as an index in `KINDS`) of at least half of its top tokens, else "mixed"."""
    if lm.tokenizer is None:
        return np.full(len(top), KINDS.index("mixed"))
    of_token = np.array([_kind(token) for token in clean(lm.token_strings(list(range(lm.d_vocab))))])
    counted = np.stack([(of_token[top] == kind).sum(axis=1) for kind in range(len(KINDS) - 1)], axis=1)
    most = counted.argmax(axis=1)
    return np.where(counted.max(axis=1) * 2 >= top.shape[1], most, KINDS.index("mixed"))


def _lens(lm: Decoder, gallery: Gallery) -> str:
    found = gallery.other_lens(lens_identity(lm)) or f"tokens and descriptions were made with {gallery.reader}"
    return f"{found[0].upper()}{found[1:]}."


def _best(gallery: Gallery | None, memory: Int[np.ndarray, "point 2"]) -> list[Best]:
    """Return the memories of the saved gallery that are on the map."""
    if gallery is None:
        return []
    at = {(layer, number): i for i, (layer, number) in enumerate(memory.tolist())}
    listed = {row.name for row in gallery.different()}
    return [
        Best(
            at[row.layer, row.index],
            row.name,
            rank,
            row.score,
            row.description,
            row.concept,
            row.name in listed,
            row.truth and row.truth.correlation,
            row.truth and row.truth.control,
        )
        for rank, row in enumerate(gallery, start=1)
        if (row.layer, row.index) in at
    ]


def _gallery(lm: Decoder, index: Index | None) -> Gallery | None:
    """Return the gallery saved with the index or shipped with the model; None if there is none or it is damaged."""
    with suppress(UnembedError):  # the saved gallery is damaged, or of another version
        folder = None if index is None else index.path
        if gallery := memory_gallery(lm, folder):
            return gallery.first(SAVED)
    return None

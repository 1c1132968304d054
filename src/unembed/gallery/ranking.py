"""Ranking memories by the evidence that they do something a person can name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from unembed.concepts.detection import Concept, find_concepts
from unembed.concepts.token_classes import Classes
from unembed.concepts.value_concepts import model_classes
from unembed.gallery.context_vectors import ContextVectors, coherence
from unembed.gallery.evidence import (
    INGREDIENTS,
    SIGNIFICANT,
    Evidence,
    MemoryEvidence,
    describe,
    describe_pattern,
    score,
)
from unembed.gallery.gallery import Gallery
from unembed.gallery.removal_effects import Removal, probability_drops
from unembed.gallery.trigger_patterns import WINDOW, PatternFinder, TriggerPattern
from unembed.lens import read
from unembed.memories.norm_overlap import vectors_like
from unembed.memories.values import value_readings, written_values
from unembed.models.decoder import Decoder, require_decoder
from unembed.models.fingerprint import sampled_fingerprint
from unembed.results import Provenance
from unembed.validation import positive_int, valid_seed

TOP_TOKENS = 30
COHERENT_TOKENS = 15
"""Of the top tokens, those whose coherence is measured."""
RANDOM_VECTORS = 299
"""Random vectors for each layer; the concepts of the values are compared with theirs."""
SHOWN_TOKENS = 10
EFFECT_TRIGGERS = 10
"""Triggers on which the memory is removed."""
LONGEST = 64
"""Tokens of a prefix that are run for the effect."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class TriggerText:
    """The keys' triggers as an index stores them: a text, and the positions at which each key fires most."""

    text: Int[np.ndarray, " pos"]
    """Token ids of the corpus."""
    positions: dict[str, Int[np.ndarray, "memory trigger"]]
    """For each pole the positions of the triggers in the text, strongest first; -1 where there are fewer."""
    next_tokens: Callable[[Int[np.ndarray, " place"]], Int[np.ndarray, " place"]]
    """The token after each position; -1 where there is none."""
    prefix: Callable[[int], Int[np.ndarray, " pos"]]
    """The tokens that the model reads up to a position of the text, special tokens included."""


@dataclass
class _Candidates:
    """All memories and poles, in arrays of one row each."""

    layer: np.ndarray
    index: np.ndarray
    pole: list[str]
    ids: Int[np.ndarray, "row k"]
    """Promoted tokens, -1 after the last."""
    positions: Int[np.ndarray, "row trigger"] | None
    evidence: list[dict[str, Evidence | None]]
    """By ingredient; None where it was not measured."""


def rank_memories(
    lm: Decoder,
    known: TriggerText | None = None,
    top: int = 200,
    *,
    layers: Sequence[int] | None = None,
    show_unlearned: bool = False,
    provenance: Provenance | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Gallery:
    """Memories ranked by evidence.

    Args:
        known: triggers and text of an index; without it only concepts are judged, for which the weights suffice.
        top: how many memories; a gated memory may come once for each pole.
        layers: only these; all when None.
        show_unlearned: whether tokens that the model never learned may be among the promoted ones.
        seed: of the random lists that coherence is compared with.
        progress: called with the name of a step, how much of it is done, and how much there is.

    The effect is measured for the 2 * `top` memories that are best by the other four ingredients.

    Raises:
        InvalidInput: the model has no tokenizer, or `top` is less than 1.
        OutOfRange: a layer that the model does not have.
        Unsupported: the model has no memories.

    Memory: top tokens of all values, and what `coherence` and `value_readings` need.
    """
    lm, top, seed = require_decoder(lm), positive_int("top", top), valid_seed(seed)
    report = progress or (lambda _what, _done, _total: None)
    classes = model_classes(lm, embedding=False)
    rows = _candidates(lm, known, layers, show_unlearned, report)
    concepts = _concepts(classes, rows.ids)
    random_scores = {
        (layer, pole): _random_scores(lm, classes, layer, pole, show_unlearned, seed)
        for layer in np.unique(rows.layer).tolist()
        for pole in dict.fromkeys(rows.pole)
    }
    for i, concept in enumerate(concepts):
        random = random_scores[int(rows.layer[i]), rows.pole[i]]
        rows.evidence[i]["concept"] = _concept_evidence(concept, len(classes.tokens), random)
    patterns: list[TriggerPattern | None] = [None] * len(concepts)
    if known is not None and rows.positions is not None:
        _add_coherence(rows, known, classes, lm.unlearned.cpu().numpy(), seed)
        strings = lm.vocabulary.strings(torch.arange(lm.d_vocab))
        patterns = _add_triggers(rows, known, classes, strings, report)
    best = np.argsort([-score(one) for one in rows.evidence], kind="stable")
    if known is not None and rows.positions is not None:
        best = best[: 2 * top]
        _add_effects(lm, rows, known, best, report)
        best = best[np.argsort([-score(rows.evidence[i]) for i in best], kind="stable")]
    found = tuple(_row(lm, rows, i, concepts[i], patterns[i]) for i in best[:top].tolist())
    notes = {"candidates": len(concepts), "show_unlearned": show_unlearned, "significant": SIGNIFICANT}
    notes["text"] = "none: concepts alone, from the weights" if known is None else "the index's corpus"
    source = provenance or lm.provenance()
    notes["sampled_fingerprint"] = sampled_fingerprint(lm)
    about = lm.provenance(corpus=source.corpus, basis="raw", seed=seed, notes={**source.notes, **notes})
    return Gallery(found, about)


def _candidates(
    lm: Decoder, known: TriggerText | None, layers: Sequence[int] | None, show_unlearned: bool, report: Progress
) -> _Candidates:
    if not lm.n_layers:
        lm.feed_forward(0)  # raises with the reason
    chosen = list(lm.memory_layers or range(lm.n_layers)) if layers is None else sorted({lm.layer(n) for n in layers})
    sizes = [lm.weights.n_memories[n] for n in chosen]
    starts = np.concatenate([[0], np.cumsum([lm.n_memories_of(n) for n in range(lm.n_layers)])])
    layer, index = np.repeat(chosen, sizes), np.concatenate([np.arange(n) for n in sizes])
    signed = any(lm.is_signed(n) for n in chosen)
    poles = (("positive", "negative") if signed else ("positive",)) if known is None else tuple(known.positions)
    ids, positions = [], []
    for pole in poles:
        readings = value_readings(
            lm,
            TOP_TOKENS,
            layers=chosen,
            bottom=pole == "negative",
            show_unlearned=show_unlearned,
            progress=lambda done, total: report("reading values", done, total),
        )
        ids.append(np.concatenate([row[:n].numpy() for row, n in zip(readings.ids, sizes, strict=True)]))
        if known is not None:
            positions.append(known.positions[pole][starts[layer] + index])
    return _Candidates(
        np.tile(layer, len(poles)),
        np.tile(index, len(poles)),
        [pole for pole in poles for _ in layer],
        np.concatenate(ids).astype(np.int64),
        np.concatenate(positions).astype(np.int64) if positions else None,
        [dict.fromkeys(INGREDIENTS) for _ in poles for _ in layer],
    )


def _concepts(classes: Classes, ids: np.ndarray) -> list[Concept | None]:
    return [next((one for one in row if one.counted), None) for row in find_concepts(classes, ids)]


@torch.no_grad()
def _random_scores(
    lm: Decoder, classes: Classes, layer: int, pole: str, show_unlearned: bool, seed: int
) -> Float[np.ndarray, " random"]:
    """Scores of the concepts of random vectors with the mean and deviation of the layer's values; 0 without one.

    The unembedding is far from isotropic, so the top tokens of a random vector share more than random tokens do.
    """
    generator = torch.Generator().manual_seed(seed * 10_007 + layer)
    vectors = vectors_like(written_values(lm, layer), RANDOM_VECTORS, generator)
    hidden = None if show_unlearned else lm.unlisted
    ids = read(lm, -vectors if pole == "negative" else vectors, TOP_TOKENS, basis="raw", hidden=hidden).ids
    found = _concepts(classes, ids.cpu().numpy())
    return np.array([0.0 if concept is None else concept.score for concept in found])


def _concept_evidence(concept: Concept | None, n_tokens: int, random: Float[np.ndarray, " random"]) -> Evidence:
    """Size: the share of the top tokens in the class, in excess of the class's share of the vocabulary.

    p: the larger of the hypergeometric one and the share of random vectors with a concept at least as improbable.
    """
    if concept is None:
        return Evidence(0.0, 1.0)
    base = concept.class_size / n_tokens
    size = (len(concept.members) / TOP_TOKENS - base) / (1 - base)
    p = max(10.0**-concept.score, (1 + int((random >= concept.score).sum())) / (1 + len(random)))
    return Evidence(float(np.clip(size, 0, 1)), min(1.0, p))


def _add_coherence(
    rows: _Candidates, known: TriggerText, classes: Classes, unlearned: Bool[np.ndarray, " token"], seed: int
) -> None:
    """Pieces of words are left out: what precedes the end of a word is the same for all of them."""
    eligible = np.array([token.kind in ("word", "number") for token in classes.tokens]) & ~unlearned
    contexts = ContextVectors.count(np.asarray(known.text), eligible)
    # The first tokens with a vector, not the first tokens.
    order = np.argsort(~contexts.known[rows.ids], axis=1, kind="stable")[:, :COHERENT_TOKENS]
    found = coherence(contexts, np.take_along_axis(rows.ids, order, axis=1), seed=seed)
    for one, similarity, size, p in zip(rows.evidence, found.similarity, found.size, found.p, strict=True):
        one["coherence"] = None if np.isnan(similarity) else Evidence(float(size), float(p))


def _add_triggers(
    rows: _Candidates, known: TriggerText, classes: Classes, strings: list[str], report: Progress
) -> list[TriggerPattern | None]:
    assert rows.positions is not None
    finder = PatternFinder(classes, np.asarray(known.text))
    base = finder.frequency[rows.ids].sum(axis=1)  # (row,)
    patterns = []
    for i, positions in enumerate(rows.positions):
        positions = positions[positions >= 0]
        windows = np.full((len(positions), WINDOW), -1, dtype=np.int64)
        for row, position in enumerate(positions.tolist()):
            prefix = known.prefix(position)[-WINDOW:]
            windows[row, WINDOW - len(prefix) :] = prefix
        pattern = finder.find(windows, strings)
        patterns.append(pattern)
        if len(positions):
            rows.evidence[i]["triggers"] = Evidence(0.0, 1.0) if pattern is None else Evidence(pattern.size, pattern.p)
            rows.evidence[i]["agreement"] = agreement(known.next_tokens(positions), rows.ids[i], float(base[i]))
        if i % 256 == 0 or i + 1 == len(base):
            report("comparing triggers", i + 1, len(base))
    return patterns


def agreement(following: Int[np.ndarray, " trigger"], promoted: Int[np.ndarray, " k"], base: float) -> Evidence | None:
    """Size: the share of the triggers that a promoted token follows, in excess of these tokens' share of the text.

    p: the larger of two binomial ones, over the triggers and over the different tokens that follow them: a phrase that
    the text repeats is one observation.

    Args:
        following: the token after each trigger, -1 where the text ends.
        promoted: the top tokens of the value.
        base: their share of the text's tokens.
    """
    from scipy.stats import binom  # takes 0.4 seconds to import

    following = following[following >= 0]
    if not len(following):
        return None
    hits = np.isin(following, promoted)
    different = np.unique(following)
    chance = min(1.0, base)
    p = max(float(binom.sf(int(found.sum()) - 1, len(found), chance)) for found in (hits, np.isin(different, promoted)))
    return Evidence(float(np.clip((hits.mean() - base) / (1 - base), 0, 1)), p)


def _add_effects(
    lm: Decoder, rows: _Candidates, known: TriggerText, best: Int[np.ndarray, " row"], report: Progress
) -> None:
    """The mean fall of the promoted tokens' probability, with the sign test's p-value over the triggers."""
    from scipy.stats import binom  # takes 0.4 seconds to import

    assert rows.positions is not None
    done = 0
    for layer in np.unique(rows.layer[best]).tolist():
        chosen = [int(i) for i in best if rows.layer[i] == layer]
        removals, owner = [], []
        for i in chosen:
            promoted = torch.from_numpy(rows.ids[i])
            for position in rows.positions[i][rows.positions[i] >= 0][:EFFECT_TRIGGERS].tolist():
                prefix = torch.from_numpy(np.array(known.prefix(position)[-LONGEST:], dtype=np.int64))
                removals.append(Removal(int(rows.index[i]), prefix, promoted))
                owner.append(i)
        drops = probability_drops(lm, layer, removals).numpy()
        for i in chosen:
            own = drops[np.array(owner) == i]
            if len(own):
                falls = int((own > 0).sum())
                p = float(binom.sf(falls - 1, len(own), 0.5))
                rows.evidence[i]["effect"] = Evidence(float(np.clip(own.mean(), 0, 1)), p)
        done += len(chosen)
        report("removing memories", done, len(best))


def _row(
    lm: Decoder, rows: _Candidates, i: int, concept: Concept | None, pattern: TriggerPattern | None
) -> MemoryEvidence:
    evidence = rows.evidence[i]
    tokens = tuple(lm.token_strings(rows.ids[i, :SHOWN_TOKENS].tolist()))
    members = () if concept is None else tuple(lm.token_strings(list(concept.members)))
    name = None if concept is None else concept.name
    return MemoryEvidence(
        int(rows.layer[i]),
        int(rows.index[i]),
        rows.pole[i],
        describe(pattern, name, members, tokens, evidence),
        tokens,
        tuple(rows.ids[i, :SHOWN_TOKENS].tolist()),
        name,
        members,
        describe_pattern(pattern),
        evidence,
        lm.experts_of(int(rows.layer[i])),
    )

"""Candidates for the gallery: memories (FFN neurons) with the tokens they promote and the evidence found so far.

Most memories do nothing that a person can name, so evidence is computed in two steps: for all memories only as much as
their score needs, and in full for the best ones. The scores are the same as if all were computed in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int

from unembed.concepts.detection import Concept, find_concepts
from unembed.concepts.token_classes import Classes
from unembed.gallery.evidence import INGREDIENTS, Evidence, MemoryEvidence, describe, score
from unembed.jacobian.basis import basis_or_default, in_basis, lens_of
from unembed.lens import read
from unembed.memories.norm_overlap import vectors_like
from unembed.memories.values import value_readings, written_values
from unembed.models.decoder import Decoder

TOP_TOKENS = 30
RANDOM_VECTORS = 299
"""Number of random vectors for each layer. As a control, their top tokens are searched for concepts like those of value
vectors."""
SHOWN_TOKENS = 10


@dataclass(frozen=True, eq=False)
class TriggerText:
    """A text, and the positions at which each memory (FFN neuron) fires most in it, as an index stores them."""

    text: Int[np.ndarray, " pos"]
    """Token ids of the corpus."""
    positions: dict[str, Int[np.ndarray, "memory trigger"]]
    """For each pole, the positions of each memory's triggers in the text, strongest first, padded with -1."""
    starts: Int[np.ndarray, " layer_and_one"]
    """The row of each layer's first memory, followed by the total number of rows."""
    next_tokens: Callable[[Int[np.ndarray, " place"]], Int[np.ndarray, " place"]]
    """The token after each position; -1 where there is none."""
    prefix: Callable[[int], Int[np.ndarray, " pos"]]
    """The tokens that the model reads up to a position of the text, special tokens included."""
    promoted: Mapping[str, Int[np.ndarray, "memory k"]] | None = None
    """For each pole, the tokens that each memory promotes most; tokens that the model never learned are left out. None
    if these tokens are not stored and must be computed."""


@dataclass
class Candidate:
    """A memory (FFN neuron) at one sign of its coefficient (its pole), with the evidence found so far."""

    layer: int
    index: int
    pole: str
    promoted: tuple[int, ...]
    """The tokens that the memory promotes most at this pole."""
    concept: str | None = None
    concept_tokens: tuple[int, ...] = ()
    pattern: str | None = None
    """What the texts on which the memory fires most have in common, in words."""
    found: dict[str, Evidence | None] = field(default_factory=lambda: dict.fromkeys(INGREDIENTS))
    """The evidence found so far, by the name of the measure; None where it was not measured."""

    @property
    def score(self) -> float:
        """Return the score that the evidence found so far gives."""
        return score(self.found)

    def described(self, lm: Decoder) -> MemoryEvidence:
        """Return the candidate as a row of the gallery."""
        tokens = tuple(lm.token_strings(list(self.promoted[:SHOWN_TOKENS])))
        members = tuple(lm.token_strings(list(self.concept_tokens)))
        return MemoryEvidence(
            self.layer,
            self.index,
            self.pole,
            describe(self.pattern, self.concept, members, tokens, self.found),
            tokens,
            self.promoted[:SHOWN_TOKENS],
            self.concept,
            members,
            self.pattern,
            self.found,
            lm.experts_of(self.layer),
        )


def poles_of(lm: Decoder, known: TriggerText | None, layer: int) -> tuple[str, ...]:
    """Return the signs of the coefficient at which a layer's memories are ranked.

    These are the signs in the index; without an index, both in a gated layer, and the positive sign in others.
    """
    if known is not None:
        return tuple(known.positions)
    return ("positive", "negative") if lm.is_signed(layer) else ("positive",)


def candidates_of(lm: Decoder, known: TriggerText | None, layer: int, show_unlearned: bool) -> list[Candidate]:
    """Return all memories of a layer as candidates: at positive and then, in gated layers, at negative coefficients."""
    poles = poles_of(lm, known, layer)
    n = lm.weights.n_memories[layer]
    found = []
    for pole in poles:
        # If the model has a fitted lens, the promoted tokens are computed again, because those stored in the index may
        # have been computed without the lens.
        if known is not None and known.promoted is not None and not show_unlearned and lens_of(lm) is None:
            ids = np.asarray(known.promoted[pole][known.starts[layer] : known.starts[layer + 1], :TOP_TOKENS])
        else:
            bottom = pole == "negative"
            read_now = value_readings(lm, TOP_TOKENS, layers=[layer], bottom=bottom, show_unlearned=show_unlearned)
            ids = read_now.ids[0, :n].numpy()
        found += [Candidate(layer, i, pole, tuple(row)) for i, row in enumerate(ids.tolist())]
    return found


def add_concepts(
    lm: Decoder, candidates: list[Candidate], classes: Classes, layer: int, show_unlearned: bool, seed: int
) -> None:
    """Find each candidate's concept.

    Its p-value is based on random vectors with the mean and standard deviation of the layer's value vectors.
    """
    concepts = _concepts(classes, np.array([one.promoted for one in candidates]))
    poles = dict.fromkeys(one.pole for one in candidates)
    random = {pole: _random_scores(lm, classes, layer, pole, show_unlearned, seed) for pole in poles}
    for one, concept in zip(candidates, concepts, strict=True):
        one.found["concept"] = _concept_evidence(concept, len(classes.tokens), random[one.pole])
        if concept is not None:
            one.concept, one.concept_tokens = concept.name, concept.members


def _concepts(classes: Classes, ids: Int[np.ndarray, "list k"]) -> list[Concept | None]:
    return [next((one for one in row if one.counted), None) for row in find_concepts(classes, ids)]


@torch.no_grad()
def _random_scores(
    lm: Decoder, classes: Classes, layer: int, pole: str, show_unlearned: bool, seed: int
) -> Float[np.ndarray, " random"]:
    """Return concept scores of random vectors with the mean and standard deviation of the layer's value vectors.

    They are the control for concepts: the unembedding is far from isotropic, so the top tokens of a random vector have
    more in common than random tokens. The score is 0 for a vector without a concept.
    """
    generator = torch.Generator().manual_seed(seed * 10_007 + layer)
    vectors = vectors_like(written_values(lm, layer), RANDOM_VECTORS, generator)
    vectors, _ = in_basis(lm, vectors, layer, basis_or_default(lm, None, "raw"))
    hidden = None if show_unlearned else lm.unlisted
    ids = read(lm, -vectors if pole == "negative" else vectors, TOP_TOKENS, basis="raw", hidden=hidden).ids
    found = _concepts(classes, ids.cpu().numpy())
    return np.array([0.0 if concept is None else concept.score for concept in found])


def _concept_evidence(concept: Concept | None, n_tokens: int, random: Float[np.ndarray, " random"]) -> Evidence:
    """Return size and p-value of a concept.

    The p-value is the larger of two: the hypergeometric one, and the share of random vectors whose concept has at least
    this score.
    """
    if concept is None:
        return Evidence(0.0, 1.0)
    base = concept.class_size / n_tokens
    size = (len(concept.members) / TOP_TOKENS - base) / (1 - base)
    p = max(10.0**-concept.score, (1 + int((random >= concept.score).sum())) / (1 + len(random)))
    return Evidence(float(np.clip(size, 0, 1)), min(1.0, p))

"""Measure evidence in a text: coherence of promoted tokens, pattern of triggers, agreement, effect of removal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int

from unembed.concepts.token_classes import Classes
from unembed.gallery.candidates import Candidate, TriggerText
from unembed.gallery.context_vectors import ContextVectors, coherence
from unembed.gallery.evidence import SIGNIFICANT, Evidence, describe_pattern
from unembed.gallery.removal_effects import Removal, probability_drops
from unembed.gallery.trigger_patterns import WINDOW, PatternFinder
from unembed.models.decoder import Decoder

COHERENT_TOKENS = 15
"""Number of top tokens whose coherence is measured."""
EFFECT_TRIGGERS = 10
"""Number of triggers on which the memory is removed to measure its effect."""
LONGEST = 64
"""Largest number of tokens of a prefix that are run to measure the effect."""


class TextEvidence:
    """Measures evidence about memories (FFN neurons) of one model in one text."""

    def __init__(self, lm: Decoder, known: TriggerText, classes: Classes, seed: int) -> None:
        """Compute the tokens' context vectors in the text; this takes about a second for 100,000 tokens."""
        self._lm, self._known, self._seed = lm, known, seed
        text = np.asarray(known.text)
        # Pieces of words are left out, because their contexts are mostly other pieces of the same word.
        eligible = np.array([token.kind in ("word", "number") for token in classes.tokens])
        self._contexts = ContextVectors.count(text, eligible & ~lm.unlearned.cpu().numpy())
        self._patterns = PatternFinder(classes, text)
        self._strings = lm.vocabulary.strings(torch.arange(lm.d_vocab))

    def judge(self, candidates: Sequence[Candidate]) -> None:
        """Add the evidence on which the candidates' scores depend.

        A measure that would count as 0 in the score may be left out.
        """
        self._add_coherence(candidates, only_below=SIGNIFICANT)
        self._add_agreement(candidates)
        self._add_patterns([one for one in candidates if _counted(one, "agreement")])

    def complete(self, candidates: Sequence[Candidate]) -> None:
        """Add the evidence that is still missing, except the effect of removing the memory."""
        self._add_coherence(candidates)
        self._add_patterns([one for one in candidates if one.found["triggers"] is None])

    def add_effects(self, candidates: Sequence[Candidate], progress: Callable[[int], None]) -> None:
        """Add the effect of removing each memory: the mean fall of the promoted tokens' probability.

        The p-value is that of a sign test over the texts.

        Args:
            progress: called with the number of texts that are done.
        """
        from scipy.stats import binom  # takes 0.4 seconds to import

        removals, owner = [], []
        for number, one in enumerate(candidates):
            promoted = torch.tensor(one.promoted)
            for position in self._positions(one)[:EFFECT_TRIGGERS].tolist():
                prefix = torch.from_numpy(np.array(self._known.prefix(position)[-LONGEST:], dtype=np.int64))
                removals.append(Removal(one.layer, one.index, prefix, promoted))
                owner.append(number)
        drops, owners = probability_drops(self._lm, removals, progress).numpy(), np.array(owner)
        for number, one in enumerate(candidates):
            own = drops[owners == number]
            if len(own):
                p = float(binom.sf(int((own > 0).sum()) - 1, len(own), 0.5))
                one.found["effect"] = Evidence(float(np.clip(own.mean(), 0, 1)), p)

    def _positions(self, one: Candidate) -> Int[np.ndarray, " trigger"]:
        """Return the positions in the text at which the candidate fires most."""
        positions = self._known.positions[one.pole][int(self._known.starts[one.layer]) + one.index]
        return np.asarray(positions[positions >= 0], dtype=np.int64)

    def _add_coherence(self, candidates: Sequence[Candidate], only_below: float = 1.0) -> None:
        if not candidates:
            return
        ids = np.array([one.promoted for one in candidates], dtype=np.int64)
        # Take the most promoted tokens that have a context vector; if they are too few, add the most promoted of the
        # others.
        order = np.argsort(~self._contexts.known[ids], axis=1, kind="stable")[:, :COHERENT_TOKENS]
        lists = np.take_along_axis(ids, order, axis=1)
        found = coherence(self._contexts, lists, seed=self._seed, only_below=only_below)
        for one, similarity, size, p in zip(candidates, found.similarity, found.size, found.p, strict=True):
            one.found["coherence"] = None if np.isnan(similarity) else Evidence(float(size), float(p))

    def _add_agreement(self, candidates: Sequence[Candidate]) -> None:
        if not candidates:
            return
        rows = [self._positions(one) for one in candidates]
        positions = np.full((len(rows), max(1, *map(len, rows))), -1, dtype=np.int64)
        for row, found in zip(positions, rows, strict=True):
            row[: len(found)] = found
        following = np.where(
            positions >= 0, self._known.next_tokens(positions.clip(0).reshape(-1)).reshape(positions.shape), -1
        )
        promoted = np.array([one.promoted for one in candidates], dtype=np.int64)
        base = self._patterns.frequency[promoted].sum(axis=1)
        for one, found in zip(candidates, agreements(following, promoted, base), strict=True):
            one.found["agreement"] = found

    def _add_patterns(self, candidates: Sequence[Candidate]) -> None:
        for one in candidates:
            if not len(positions := self._positions(one)):
                continue
            windows = np.full((len(positions), WINDOW), -1, dtype=np.int64)
            for row, position in enumerate(positions.tolist()):
                prefix = self._known.prefix(position)[-WINDOW:]
                windows[row, WINDOW - len(prefix) :] = prefix
            pattern = self._patterns.find(windows, self._strings)
            one.pattern = describe_pattern(pattern)
            one.found["triggers"] = Evidence(0.0, 1.0) if pattern is None else Evidence(pattern.size, pattern.p)


def _counted(one: Candidate, ingredient: str) -> bool:
    found = one.found[ingredient]
    return found is not None and found.counted > 0


def agreements(
    following: Int[np.ndarray, "memory trigger"],
    promoted: Int[np.ndarray, "memory k"],
    base: Float[np.ndarray, " memory"],
) -> list[Evidence | None]:
    """Measure how often a promoted token follows the positions at which each memory fires most (its triggers).

    The size is the share of triggers that a promoted token follows, in excess of these tokens' share of the text. The
    p-value is the larger of two binomial ones: over all triggers, and over the distinct tokens that follow them, so
    that a phrase which the text repeats does not count several times. The result is None for a memory whose triggers
    have no next token.

    Args:
        following: the token after each trigger; -1 where the text ends, and as padding.
        promoted: the tokens that each memory promotes.
        base: the promoted tokens' share of the text.
    """
    from scipy.stats import binom  # takes 0.4 seconds to import

    following = np.sort(following, axis=1)
    known = following >= 0
    hits = known & (following[:, :, None] == promoted[:, None, :]).any(axis=2)
    first = known.copy()  # made True only at the first of several equal tokens
    first[:, 1:] &= following[:, 1:] != following[:, :-1]
    n, n_hits = known.sum(axis=1), hits.sum(axis=1)
    chance = np.minimum(1.0, base)
    of_all = binom.sf(n_hits - 1, n, chance)
    of_different = binom.sf((hits & first).sum(axis=1) - 1, first.sum(axis=1), chance)
    size = ((n_hits / n.clip(1) - base) / (1 - base)).clip(0, 1)
    return [
        Evidence(float(one), float(p)) if any_known else None
        for one, p, any_known in zip(size, np.maximum(of_all, of_different), n > 0, strict=True)
    ]

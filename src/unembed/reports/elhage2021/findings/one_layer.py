"""The claims about one layer: copying, skip-trigrams and their bugs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unembed.attention.weights.paper import COPYING_HEADS
from unembed.document.intervals import Measured, mean_of, paired_difference
from unembed.document.numbers import signed
from unembed.reports.claims import Claim, Judgement, Numbers, above, at_depth, verdict_of
from unembed.reports.elhage2021.measurements import DRAWS, Measurements

REPEATED = 0.05
"""Nats by which heads must help repeated tokens more than new ones."""
COPIES = 0.5
"""Copying score from which on a head counts as copying; the paper does not state its line."""


def _copying(m: Measurements) -> Numbers:
    score = m.copying.score
    return {"n_layers": m.lm.n_layers, "scores": score[~score.isnan()].tolist()}  # heads with an OV circuit


def judge_copying(n_layers: int, scores: Sequence[float]) -> Judgement:
    """How many heads copy."""
    copies = sum(s >= COPIES for s in scores)
    return Judgement(
        f"{copies} of {len(scores)} heads have a copying score of at least {COPIES:g}; the median is "
        f"{float(np.median(scores)):+.2f}.",
        verdict_of(*at_depth(n_layers, 1, copies > len(scores) / 2)),
    )


def _skip_trigrams(m: Measurements) -> Numbers:
    gains: list[float] = []
    likelier, chance, occurring, n = 0, 0.0, 0, 0
    for found in m.skip_trigrams:
        k = len(found.triples)
        for i, counts in enumerate(found.counts):
            others = [found.shuffled[i + draw * k] for draw in range(DRAWS)]
            own = [c for c in [counts] if c.with_source and c.without_source]
            controls = [c.rate_with > c.rate_without for c in others if c.with_source and c.without_source]
            if own and controls:
                gains.append(float(counts.rate_with > counts.rate_without) - float(np.mean(controls)))
                likelier += counts.rate_with > counts.rate_without
                chance += float(np.mean(controls))
        occurring += found.occurring
        n += k
    return {
        "n_layers": m.lm.n_layers,
        "gain": mean_of(gains, seed=m.seed),
        "likelier": likelier / max(len(gains), 1),
        "shuffled": chance / max(len(gains), 1),
        "occurring": occurring,
        "n": n,
    }


def judge_skip_trigrams(
    n_layers: int, gain: Measured, likelier: float, shuffled: float, occurring: int, n: int
) -> Judgement:
    """Triples in the corpus, compared with the same triples with one another's sources."""
    return Judgement(
        f"Of the {n} largest triples of the first layer's heads, {occurring} occur in the corpus. In {likelier:.0%} of "
        f"the {gain.n} whose destination occurs both with and without the source, the output is likelier with it; "
        f"with the sources shuffled among the triples, in {shuffled:.0%}.",
        verdict_of(*at_depth(n_layers, 1, above(gain, 0.0))),
    )


def _bugs(m: Measurements) -> Numbers | None:
    if m.bugs is None:
        return None
    occurring = [t.occurring for t in m.bugs.tables]
    return {
        "n_layers": m.lm.n_layers,
        "gain": mean_of(np.array(occurring) - np.array(m.bugs.chance_occurring), seed=m.seed),
        "occurring": float(np.mean(occurring)),
        "chance_occurring": float(np.mean(m.bugs.chance_occurring)),
        "crossed": float(np.mean([len(t.pairs) for t in m.bugs.tables])),
        "chance_crossed": float(np.mean(m.bugs.chance_crossed)),
    }


def judge_bugs(
    n_layers: int, gain: Measured, occurring: float, chance_occurring: float, crossed: float, chance_crossed: float
) -> Judgement:
    """Pairs raised after a source, compared with tables of random tokens of the same frequencies."""
    return Judgement(
        f"After a source the head raises {occurring:.1f} pairs that occur ({chance_occurring:.1f} in tables of random "
        f"tokens of the same frequencies) and, with them, {crossed:.1f} crossed pairs that never do "
        f"({chance_crossed:.1f}).",
        verdict_of(*at_depth(n_layers, 1, above(gain, 0.0), crossed > 0)),
    )


def _primitive(m: Measurements) -> Numbers:
    found = m.term_importance
    repeated, new = found.repeated_gain.numpy(), found.new_gain.numpy()
    return {
        "n_layers": m.lm.n_layers,
        "layer": m.first_layer,
        "repeated": mean_of(repeated, seed=m.seed),
        "new": mean_of(new, seed=m.seed),
        "lead": paired_difference(repeated, new, seed=m.seed),
    }


def judge_primitive(n_layers: int, repeated: Measured, new: Measured, lead: Measured, layer: int = 0) -> Judgement:
    """By how much the first layer's heads lower the loss of repeated tokens, compared with new ones."""
    return Judgement(
        f"The single heads of layer {layer} take {signed(repeated)} nats off the loss of next tokens that occurred "
        f"earlier in the window and {signed(new)} off that of new ones, a difference of {signed(lead)}.",
        verdict_of(*at_depth(n_layers, 1, above(repeated, 0.0), above(lead, REPEATED))),
    )


CLAIMS: tuple[Claim[Measurements], ...] = (
    Claim(
        "copying", "copying",
        "Most heads of the one-layer model copy significantly: the eigenvalues of their OV circuits are mostly "
        "positive.",
        "One-layer models: summarizing OV/QK matrices",
        "Copying score: sum of the eigenvalues over the sum of their sizes.",
        COPYING_HEADS,
        f"More than half of the heads of a one-layer model reach {COPIES:g}; random circuits scatter around 0.",
        _copying, judge_copying,
    ),
    Claim(
        "skip-trigrams", "skip-trigrams",
        "One-layer models are an ensemble of bigram and skip-trigram models, which can be read off the weights.",
        "One-layer models: skip-trigrams",
        "Share of the heads' largest triples whose output follows the destination more often when the source occurs "
        "earlier.",
        "in words",
        "The share is above that of the same triples with shuffled sources, with its interval over triples: a triple "
        "made of frequent tokens is likelier in some texts whatever its source is.",
        _skip_trigrams, judge_skip_trigrams,
    ),
    Claim(
        "bugs", "skip-trigram bugs",
        "Because QK and OV are separate, a head that raises (keep ... in, mind) and (keep ... at, bay) must also raise "
        "(keep ... in, bay).",
        "One-layer models: skip-trigram bugs",
        "Occurring and crossed pairs among the 20 destinations and 20 outputs that a source raises most.",
        "in words",
        "The head raises more occurring pairs than tables of random tokens of the same frequencies, with the interval "
        "over sources, and crossed pairs with them. Crossed pairs alone show nothing: nearly every random table has "
        "some.",
        _bugs, judge_bugs,
    ),
    Claim(
        "primitive in-context learning", "primitive in-context learning",
        "Heads dedicate much of their capacity to copying: they raise tokens that occurred earlier, at plausible "
        "places. One-layer models do primitive in-context learning.",
        "One-layer models: copying and primitive in-context learning",
        "Nats that the single heads of the first layer take off the direct path's loss, of next tokens that occurred "
        "earlier less that of new ones.",
        "in words",
        f"In a one-layer model the heads help repeated tokens, and by more than {REPEATED:g} nats more than new ones, "
        "both with their intervals over windows: heads that only sharpen token frequencies help both alike.",
        _primitive, judge_primitive,
    ),
)  # fmt: skip

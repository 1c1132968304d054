"""The claims about models without layers: bigrams and the direct path."""

from __future__ import annotations

from unembed.document.intervals import Measured, mean_of
from unembed.document.numbers import signed
from unembed.reports.claims import Claim, Judgement, Numbers, above, verdict_of
from unembed.reports.elhage2021.measurements import Measurements

PARTIAL = 0.05
"""Partial rank correlation of the direct path with bigrams; random embeddings give 0."""
BIGRAM_GAIN = 0.5
"""Share of the gain of bigrams over token frequencies that a model of the bigram table must reach."""


_BIGRAMS = "Zero-layer transformers"


def _bigram_table(m: Measurements) -> Numbers | None:
    if m.lm.n_layers:
        return None
    found = m.direct_path
    return {"losses": (found.cross_entropy, found.bigram_cross_entropy, found.unigram_cross_entropy)}


def judge_bigram_table(losses: tuple[float, float, float]) -> Judgement:
    """The cross-entropy of a model without layers compared with that of bigrams and of token frequencies."""
    own, bigrams, unigrams = losses
    gain = (unigrams - own) / (unigrams - bigrams) if unigrams > bigrams else None
    return Judgement(
        f"It predicts the text at {own:.2f} nats a token; bigrams of the other half of the corpus at "
        f"{bigrams:.2f}, token frequencies at {unigrams:.2f}"
        + ("." if gain is None else f": {gain:.0%} of what bigrams gain on frequencies."),
        verdict_of(None if gain is None else gain > BIGRAM_GAIN),
    )


def _direct_path(m: Measurements) -> Numbers | None:
    if not m.lm.n_layers:
        return None
    found = m.direct_path
    return {
        "partial": mean_of(found.partial.numpy(), weights=found.occurrences.numpy(), seed=m.seed),
        "spearman": found.mean_spearman,
        "frequency": found.mean(found.frequency),
        "ceiling": found.mean(found.ceiling),
        "losses": (found.cross_entropy, found.bigram_cross_entropy, found.unigram_cross_entropy),
    }


def judge_direct_path(
    partial: Measured, spearman: float, frequency: float, ceiling: float, losses: tuple[float, float, float]
) -> Judgement:
    """The direct path compared with bigram counts."""
    own, bigrams, unigrams = losses
    return Judgement(
        f"Controlling for token frequency, the rank correlation of its logits with bigram counts is {signed(partial)}; "
        f"without that control it is {spearman:.2f}. Token frequency alone reaches {frequency:.2f}, the "
        f"other half of the text {ceiling:.2f}. Cross-entropy: {own:.2f} nats, "
        f"bigrams {bigrams:.2f}, frequencies {unigrams:.2f}.",
        verdict_of(above(partial, PARTIAL)),
    )


CLAIMS: tuple[Claim[Measurements], ...] = (
    Claim(
        "bigram table", "zero layers",
        "Token embedding times unembedding approximates the bigram log-likelihood: the best that a model without "
        "layers can do.",
        _BIGRAMS,
        "Share of the nats that bigrams gain on token frequencies, of a model without layers.",
        "in words",
        f"The share is above {BIGRAM_GAIN:g}. A model of token frequencies alone has 0; the bigrams compared "
        "with are those of half the corpus, smoothed, so that more than 1 is possible.",
        _bigram_table, judge_bigram_table,
    ),
    Claim(
        "direct path", "zero layers",
        "The direct path of a model with layers represents bigram statistics that its more general rules do not: a "
        "residual of the bigram table. Only a model without layers approximates the table itself.",
        _BIGRAMS,
        "Rank correlation of the direct path's logits with bigram counts, controlling for token frequency and weighted "
        "by occurrences.",
        "in words",
        f"The mean over the 200 most frequent tokens, weighted by occurrences, is above {PARTIAL:g}, with its "
        "interval: random embeddings give 0, and token frequency alone already correlates with the counts.",
        _direct_path, judge_direct_path,
    ),
)  # fmt: skip

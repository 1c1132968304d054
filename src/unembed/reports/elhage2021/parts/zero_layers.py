"""Claims about models without layers: the direct path (embedding times unembedding) approximates bigrams."""

from __future__ import annotations

from unembed.attention.text.direct_path import direct_path_section
from unembed.attention.weights.folded_weights import embedding
from unembed.document.intervals import mean_of
from unembed.document.numbers import signed
from unembed.lens import logits_of
from unembed.reports.elhage2021.measurements import Measurements, beyond, only
from unembed.reports.quantities import Judgement, Numbers, Part, Quantity, above, judged, once
from unembed.results import format_number, format_percent, format_setting

PARTIAL = 0.05
"""The direct path correlates with bigrams if their partial rank correlation exceeds this; random embeddings give 0."""
BIGRAM_GAIN = 0.5
"""A model approximates bigrams if its loss reduction is more than this share of the loss reduction of bigrams.

Both reductions are relative to the loss of predicting by token frequencies alone.
"""


@once
def direct_path(m: Measurements) -> Numbers:
    """Return how the direct path correlates with bigram counts, and the losses of both and of token frequencies."""
    found = m.direct_path
    return Numbers(
        partial=mean_of(found.partial.numpy(), weights=found.occurrences.numpy(), seed=m.seed),
        spearman=found.mean(found.spearman),
        frequency=found.mean(found.frequency),
        ceiling=found.mean(found.ceiling),
        losses=(found.cross_entropy, found.bigram_cross_entropy, found.unigram_cross_entropy),
    )


def judge_bigram_table(n: Numbers) -> Judgement:
    """Judge whether a model without layers predicts the text nearly as well as bigrams do.

    If predicting by bigrams instead of token frequencies lowers the loss by some amount, the model must lower it by
    more than the share `BIGRAM_GAIN` of this amount.
    """
    own, bigrams, unigrams = n.losses
    gain = (unigrams - own) / (unigrams - bigrams) if unigrams > bigrams else None
    return judged(
        f"It predicts the text at {format_number(own)} nats a token; bigrams of the other half of the corpus at "
        f"{format_number(bigrams)}, token frequencies at {format_number(unigrams)}"
        + ("." if gain is None else f": {format_percent(gain, 0)} of what bigrams gain on frequencies."),
        None if gain is None else gain > BIGRAM_GAIN,
    )


def judge_direct_path(n: Numbers) -> Judgement:
    """Judge whether the direct path correlates with bigram counts."""
    own, bigrams, unigrams = n.losses
    return judged(
        "Controlling for token frequency, the rank correlation of its logits with bigram counts is "
        f"{signed(n.partial)}; without that control it is {format_number(n.spearman)}. Token frequency alone reaches "
        f"{format_number(n.frequency)}, the other half of the text {format_number(n.ceiling)}. Cross-entropy: "
        f"{format_number(own)} nats, bigrams {format_number(bigrams)}, frequencies {format_number(unigrams)}.",
        above(n.partial, PARTIAL),
    )


def explain_direct_path(m: Measurements) -> str:
    """State for how many of the compared tokens the direct path promotes the token itself most."""
    ids = m.direct_path.tokens.to(m.lm.device)
    logits = logits_of(m.lm, embedding(m.lm, "folded", ids), "final")
    itself = float((logits.argmax(dim=-1) == ids).float().mean())
    return (
        f"Of the {len(ids)} most frequent tokens, the direct path gives {format_percent(itself)} the largest logit "
        "themselves: it promotes repetition rather than what follows."
        if itself > 0.5
        else f"Of the {len(ids)} most frequent tokens, the direct path gives {format_percent(itself)} the largest "
        "logit themselves, and what it adds to token frequency is not what follows them in this text."
    )


PARTS: tuple[Part[Measurements], ...] = (
    Part(
        lambda m: direct_path_section(m.direct_path, m.provenance),
        (
            Quantity(
                "bigram table",
                "Token embedding times unembedding approximates the bigram log-likelihood: the best that a model "
                "without layers can do.",
                where="Zero-layer transformers",
                what="Share of the nats that bigrams gain on token frequencies, of a model without layers.",
                published="in words",
                test=f"The share is above {format_setting(BIGRAM_GAIN)}. A model of token frequencies alone has 0; "
                "the bigrams compared with are those of half the corpus, smoothed, so that more than 1 is possible.",
                measure=only(direct_path, 0),
                judge=judge_bigram_table,
            ),
            Quantity(
                "direct path",
                "The direct path of a model with layers represents bigram statistics that its more general rules do "
                "not: a residual of the bigram table. Only a model without layers approximates the table itself.",
                where="Zero-layer transformers",
                what="Rank correlation of the direct path's logits with bigram counts, controlling for token "
                "frequency and weighted by occurrences.",
                published="in words",
                test="The mean over the 200 most frequent tokens, weighted by occurrences, is above "
                f"{format_setting(PARTIAL)}, with its interval: random embeddings give 0, and token frequency alone "
                "already correlates with the counts.",
                measure=beyond(direct_path, 0),
                judge=judge_direct_path,
                explain=explain_direct_path,
            ),
        ),
        name="zero layers",
        absent="Zero layers: bigrams",
    ),
)

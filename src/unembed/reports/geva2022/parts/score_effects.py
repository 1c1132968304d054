"""Section 3, Eq. 2: does the score of a sub-update predict how it changes a token's probability, after the norm?"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from unembed.document.exhibits import by_layer, exhibit, means, plain_mean, plain_median
from unembed.document.intervals import Measured, mean_of
from unembed.document.model import Section
from unembed.document.numbers import percent
from unembed.memories.event_sample import TOKENS
from unembed.reports.geva2022.measurements import Measurements
from unembed.reports.published import PRINTED, Origin
from unembed.reports.quantities import Judgement, Numbers, Part, Quantity, above, judged, once
from unembed.results import format_number, format_percent

_NAMES = {"prediction": TOKENS.index("final"), "candidate": TOKENS.index("candidate")}
"""Column names of tables, and the index in `TOKENS` of the token that each column is about."""

Pairs = Float[np.ndarray, "layer example 10 token"]


def agreeing(score: Float[np.ndarray, "*pair"], change: Float[np.ndarray, "*pair"]) -> Float[np.ndarray, "*pair"]:
    """Return 1 where score and change have the same sign, 0 where they differ, and NaN where the score is 0."""
    return np.where(score == 0, np.nan, np.sign(score) == np.sign(change))


def by_chance(score: np.ndarray, change: np.ndarray) -> float:
    """Return the share of equal signs that would be expected if scores and changes were independent."""
    scored = score != 0
    up, rises = (score[scored] > 0).mean(), (change[scored] > 0).mean()
    return float(up * rises + (1 - up) * (1 - rises))


def rank_correlations(score: Pairs, change: Pairs) -> Float[np.ndarray, "layer token"]:
    """Return Spearman's correlation of score and change over a layer's sub-updates; NaN if either is constant."""
    from scipy.stats import spearmanr  # imported here, because it is slow

    def correlation(x: np.ndarray, y: np.ndarray) -> float:
        if np.ptp(x) == 0 or np.ptp(y) == 0:
            return float("nan")
        found: Any = spearmanr(x.ravel(), y.ravel())
        return float(found.statistic)

    return np.array(
        [
            [
                correlation(x, y)
                for x, y in zip(np.moveaxis(of_score, -1, 0), np.moveaxis(of_change, -1, 0), strict=True)
            ]
            for of_score, of_change in zip(score, change, strict=True)
        ]
    )


@once
def scaling(m: Measurements) -> Numbers | None:
    """Compare scores with the changes of log-probabilities and logits that sub-updates cause; None if not measured."""
    found = m.changes
    if found is None:
        return None
    signs = agreeing(found.score, found.log_probability)
    of_logits = agreeing(found.score, found.logit)
    ranks = rank_correlations(found.score, found.log_probability)
    known = ranks[~np.isnan(ranks)]
    chance = [by_chance(s, c) for s, c in zip(found.score, found.log_probability, strict=True)]

    def share(values: np.ndarray) -> Measured:
        examples = np.broadcast_to(np.arange(values.shape[1])[None, :, None, None], values.shape)
        return mean_of(values.ravel(), units=examples.ravel(), seed=m.seed, share=True)

    return Numbers(
        signs=share(signs),
        signs_of_logits=share(of_logits),
        chance=float(np.mean(chance)),
        rank=plain_median(ranks),
        least=float(known.min()) if len(known) else float("nan"),
        has_norm=m.lm.structure.final_norm is not None,
    )


def judge_scaling(n: Numbers) -> Judgement:
    """Judge whether scores agree with the changes of log-probability in sign and in rank order."""
    return judged(
        f"The sign of the score is that of the change of log p(w) in {percent(n.signs)} of the sub-updates (by chance "
        f"{format_percent(n.chance, 1)}), and that of the change of w's logit in {percent(n.signs_of_logits)}. The "
        f"rank correlation with the change of log p(w) is {format_number(n.rank)} in the median layer and "
        f"{format_number(n.least)} in the lowest.",
        above(n.signs, 0.9),
        None if np.isnan(n.rank) else n.rank > 0.9,
    )


def explain_scaling(m: Measurements) -> str | None:
    """State how much of the disagreement is due to the final norm, and how much to the softmax."""
    n = scaling(m)
    if n is None:
        return None
    norm, rest = 1 - n.signs_of_logits.value, n.signs_of_logits.value - n.signs.value
    return (
        f"The sign of the score differs from that of the change of the logit itself in {format_percent(norm, 1)} of "
        "the sub-updates"
        + (", due to the final norm: its gain, and its divisor, which changes with the stream" if n.has_norm else "")
        + f"; with the softmax, which also weighs what other tokens gain, it differs in {format_percent(rest, 1)} more."
    )


QUANTITIES: tuple[Quantity[Measurements], ...] = (
    Quantity(
        "scores scale probabilities",
        "A sub-update whose dot product with a token's embedding is positive increases the token's probability, a "
        "negative one decreases it.",
        where="Sec. 3, Eq. 2",
        what="sub-updates among the ten dominant whose score e_w . m v has the sign of the change of log p(w), if the "
        "sub-update is added to the stream before the FFN and the model reads the stream",
        published="always, without the norm and up to the softmax's constant factor; for the norm, the paper compares "
        "top tokens only (App. A.1)",
        test="In more than 90 % of the sub-updates, with a rank correlation above 0.9 in the median layer; bootstrap "
        "over examples, whose layers are resampled together. Scores paired at random give the share stated as chance.",
        measure=scaling,
        judge=judge_scaling,
        explain=explain_scaling,
        origins=(Origin("sign of a score and of the change of p(w)", "always the same", PRINTED),),
    ),
)


def section(m: Measurements) -> Section | None:
    """Show scores of sub-updates next to the changes of probability; None if the changes were not measured."""
    found = m.changes
    if found is None:
        return None
    cells: dict[str, object] = {"layer": range(m.lm.n_layers)}
    ranks, of_logits = (rank_correlations(found.score, x) for x in (found.log_probability, found.logit))
    for name, t in _NAMES.items():
        score, change = found.score[..., t], found.log_probability[..., t]
        own = agreeing(score, change).reshape(m.lm.n_layers, found.score.shape[1], -1)
        cells[f"{name}_signs"] = means([_mean(row) for row in own], m.seed)
        cells[f"{name}_by_chance"] = [by_chance(s, c) for s, c in zip(score, change, strict=True)]
        cells[f"{name}_signs_of_logit"] = [
            plain_mean(agreeing(s, c)) for s, c in zip(score, found.logit[..., t], strict=True)
        ]
    for name, t in _NAMES.items():
        cells[f"{name}_rank_correlation"] = ranks[:, t].tolist()
        cells[f"{name}_rank_correlation_of_logit"] = of_logits[:, t].tolist()
    for name, t in _NAMES.items():
        cells[f"{name}_score"] = np.median(np.abs(found.score[..., t]), axis=(1, 2)).tolist()
        cells[f"{name}_change"] = np.median(np.abs(found.log_probability[..., t]), axis=(1, 2)).tolist()
    shares = tuple(name for name in cells if "signs" in name or "chance" in name)
    correlations = tuple(name for name in cells if "correlation" in name)
    return Section(
        "What a score says of a probability (Sec. 3, Eq. 2)",
        (
            f"At the ends of {found.score.shape[1]:,} random prefixes, each of the ten dominant sub-updates of a layer "
            "is added alone to the stream before the FFN, and the model's own norm and unembedding decode the result. "
            "Its score e_w . m v is compared with the change of log p(w), for two tokens w: the model's prediction and "
            "the top candidate before the FFN. Without a norm, score and change would differ only by the change of the "
            "softmax's denominator, which is the same for all tokens.",
        ),
        (
            exhibit(
                "eq2",
                "Scores of sub-updates and changes of the token's log-probability",
                cells,  # pyright: ignore[reportArgumentType]
                m.provenance,
                "By chance: the share of equal signs if scores and changes are paired at random. Score and change: "
                "medians of absolute values.",
                percent=shares,
                apart=(correlations,),
            ),
        ),
        (
            by_layer(
                "eq2_signs",
                "Sub-updates whose score has the sign of the change of log p(w)",
                "eq2",
                {
                    "prediction_signs": "the prediction",
                    "candidate_signs": "the top candidate before the FFN",
                    "prediction_by_chance": "by chance, the prediction",
                    "candidate_by_chance": "by chance, the candidate",
                },
                "sub-updates",
                published="The paper has no such figure: there, all signs agree.",
            ),
        ),
    )


def _mean(rows: Float[np.ndarray, "example k"]) -> Float[np.ndarray, " example"]:
    """Return the mean of each row over its entries that are not NaN; NaN if there are none."""
    counts = (~np.isnan(rows)).sum(axis=1)
    return np.where(counts > 0, np.nansum(rows, axis=1) / np.maximum(counts, 1), np.nan)


PARTS = (Part(section, QUANTITIES),)

"""The claims of section 4, values represent distributions: agreement with what follows the triggers."""

from __future__ import annotations

from typing import Any

import numpy as np

from unembed.document.intervals import (
    Measured,
    rank_correlation,
    share_of,
)
from unembed.document.numbers import format_interval, format_number, format_percent, percent
from unembed.memories.values import written_values
from unembed.reports.claims import Claim, Judgement, Numbers, above, below, verdict_of, within
from unembed.reports.geva2021.formatting import first_upper
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.published import D_VOCAB
from unembed.reports.geva2021.sections.values import BINS


def _layer_of(m: Measurements) -> np.ndarray:
    """The layer of every key."""
    return np.repeat(np.arange(m.triggers.n_layers), np.diff(m.triggers.bounds))


def _agreement(m: Measurements) -> Numbers:
    a, upper = m.agreement, first_upper(m.triggers.n_layers)
    known, start = a.target >= 0, int(a.bounds[upper])

    def rate(rows: slice) -> Measured:
        return share_of(int(a.agrees[rows].sum()), int(known[rows].sum()))

    chance = [a.by_chance(n) for n in range(m.triggers.n_layers)]
    return {
        "low": rate(slice(0, start)),
        "high": rate(slice(start, None)),
        "last": rate(a.layer(m.triggers.n_layers - 1)),
        "whole": rate(slice(None)),
        "by_chance": float(np.nanmean(chance)),
        "one_token": 1 / m.lm.d_vocab,
        "upper": upper,
    }


def judge_agreement_rises(low: Measured, high: Measured, last: Measured, upper: int, **_: Any) -> Judgement:
    """The agreement rate in lower and upper layers."""
    here = (
        f"In the layers below {upper}, {percent(low)} of the values put first what follows their key's first trigger, "
        f"in layer {upper} and above {percent(high)}, and in the last {percent(last)}."
    )
    return Judgement(here, verdict_of(below(low, 0.005), above(high, low.high), above(last, 0.01)))


def judge_agreement_above_chance(whole: Measured, by_chance: float, one_token: float, **_: Any) -> Judgement:
    """The agreement rate compared with two chance levels."""
    over = whole.value / by_chance if by_chance > 0 else float("inf")
    here = (
        f"{percent(whole)} of all values put first what follows their key's first trigger, "
        f"{format_number(whole.value / one_token)} times a random token and "
        f"{format_number(over)} times the same tokens in random pairs."
    )
    return Judgement(here, verdict_of(above(whole, 100 * one_token), above(whole, 10 * by_chance)))


def _ranks(m: Measurements) -> Numbers:
    a = m.agreement
    known = a.rank > 0
    layer = _layer_of(m)
    medians = [
        float(np.median(a.rank[known & (layer == n)])) if (known & (layer == n)).any() else float("nan")
        for n in range(m.triggers.n_layers)
    ]
    trend = rank_correlation(layer[known].astype(float), a.rank[known].astype(float), seed=m.seed)
    return {"medians": medians, "trend": trend, "d_vocab": m.lm.d_vocab}


def judge_ranks(medians: list[float], trend: Measured, d_vocab: int) -> Judgement:
    """The rank of the trigger's next token, by layer."""
    here = (
        f"The median rank of the trigger's next token goes from {medians[0]:,.0f} in the first layer to "
        f"{medians[-1]:,.0f} in the last, of "
        f"{d_vocab:,} tokens; the rank correlation with the layer is {format_interval(trend)} over keys."
    )
    # A drift that leaves the rank as it was on a logarithmic scale is not an improvement.
    return Judgement(here, verdict_of(below(trend, 0), bool(medians[-1] < medians[0] / 2)))


def _probability(m: Measurements) -> Numbers:
    a = m.agreement
    known = np.flatnonzero(a.target >= 0)
    order = known[np.argsort(a.probability[known], kind="stable")]
    bins = [share_of(int(a.agrees[part].sum()), len(part)) for part in np.array_split(order, BINS) if len(part)]
    return {"bins": bins, "trend": rank_correlation(a.probability[known], a.agrees[known].astype(float), seed=m.seed)}


def judge_probability(bins: list[Measured], trend: Measured) -> Judgement:
    """Agreement by the largest probability."""
    here = (
        f"Of the eighth of the values with the lowest largest probability {percent(bins[0])} put first what follows "
        f"their key's first trigger, of that with the highest {percent(bins[-1])}; the rank correlation is "
        f"{format_interval(trend)} over values."
    )
    highest = above(bins[-1], max(b.value for b in bins[:-1]))
    return Judgement(here, verdict_of(above(trend, 0), highest))


def _predictive(m: Measurements) -> Numbers:
    a, upper = m.agreement, first_upper(m.triggers.n_layers)
    order = np.argsort(-a.probability, kind="stable")[: m.options.predictive]
    in_upper = np.searchsorted(a.bounds, order, side="right") - 1 >= upper
    known = a.target >= 0
    return {
        "in_upper": share_of(int(in_upper.sum()), len(order)),
        "even": (m.triggers.n_layers - upper) / m.triggers.n_layers,
        "some": share_of(int((a.hits[order] > 0).sum()), int((a.followed[order] > 0).sum())),
        "usual": share_of(int((a.hits[known] > 0).sum()), int(known.sum())),
        "n": len(order),
        "upper": upper,
    }


def judge_predictive_upper(in_upper: Measured, even: float, n: int, upper: int, **_: Any) -> Judgement:
    """Layers of the most predictive values."""
    here = f"Of the {n} most predictive values {percent(in_upper)} lie in layers from {upper} on, {even:.0%} by chance."
    return Judgement(here, verdict_of(above(in_upper, max(even, 0.75))))


def judge_predictive_agree(some: Measured, usual: Measured, **_: Any) -> Judgement:
    """Agreeing triggers of the most predictive values."""
    here = (
        f"{percent(some)} of the most predictive values follow one of their triggers, {percent(usual)} of all values."
    )
    return Judgement(here, verdict_of(within(some, 0.31, 0.61), above(some, usual.high)))


def explain_agreement(m: Measurements) -> str | None:
    """What chance gives in the lower layers of a small vocabulary, where that is a third of the rate or more."""
    upper = first_upper(m.triggers.n_layers)
    chance = float(np.nanmean([m.agreement.by_chance(n) for n in range(max(upper, 1))]))
    rate = _agreement(m)["low"].value
    if not chance >= rate / 3:
        return None
    return (
        f"The vocabulary has {m.lm.d_vocab:,} tokens, the paper's {D_VOCAB:,}: in the lower layers the same tokens in "
        f"random pairs agree in {format_percent(chance)}, which is {format_percent(chance / max(rate, 1e-12))} of the "
        "rate. The rest is unexplained."
    )


def explain_predictive_upper(m: Measurements) -> str | None:
    """Longer values have a larger largest probability, where nothing sets their scale."""
    upper = first_upper(m.triggers.n_layers)
    lengths = [float(written_values(m.lm, n).float().norm(dim=-1).mean()) for n in range(m.triggers.n_layers)]
    low, high = float(np.mean(lengths[:upper] or [0.0])), float(np.mean(lengths[upper:]))
    if low <= 1.2 * high:
        return None
    return (
        f"A value is read without a coefficient or norm, so that its length sets its largest probability, and values "
        f"below layer {upper} are {format_number(low / high)} times as long as those above."
    )


CLAIMS: tuple[Claim[Measurements], ...] = (
    Claim(
        "agreement rises",
        "values",
        "The agreement rate is close to zero in the lower layers, and from layer 11 on it quickly rises to 3.5 %.",
        "Sec. 4.1, Fig. 4",
        "share of values whose first token follows their key's first trigger",
        "close to zero in layers 1 to 10, rising to 3.5 %",
        "Below 0.5 % in the lower layers (a seventh of 3.5 %), more in the upper ones, and above 1 % in the last; "
        "exact binomial intervals over values.",
        _agreement,
        judge_agreement_rises,
        explain_agreement,
    ),
    Claim(
        "agreement above chance",
        "values",
        "The agreement rate is orders of magnitude higher than a random token's.",
        "Sec. 4.1",
        "agreement rate over that of a random token, and over random pairs of the same tokens",
        "3.5 % against 0.0004 %",
        "More than 100 times a random token and more than 10 times the same values and targets in random pairs: in a "
        "small vocabulary frequent tokens meet by chance.",
        _agreement,
        judge_agreement_above_chance,
    ),
    Claim(
        "ranks improve",
        "values",
        "The rank of the trigger's next token in the value's distribution improves through the layers.",
        "Sec. 4.1, Fig. 5",
        "rank of the next token, by layer",
        "median rank about 10,000 to 15,000 in layers 1 to 7 and up to 2,000 in 14 to 16, of 267,744 (by eye)",
        "The rank correlation with the layer over all keys is below 0, and the last layer's median is less than half "
        "of the first's; bootstrap over keys.",
        _ranks,
        judge_ranks,
    ),
    Claim(
        "probability and agreement",
        "values",
        "Agreement increases with the value's maximum probability.",
        "Sec. 4.2, Fig. 6",
        "agreement rate in eight bins of the largest probability",
        "from near 0 to about 0.95 over the bins (by eye)",
        "The rank correlation over values is above 0, and the highest bin lies above every other; bootstrap over "
        "values, exact binomial interval.",
        _probability,
        judge_probability,
    ),
    Claim(
        "predictive values are upper",
        "values",
        "97 of the 100 values with the highest maximum probability are in the upper layers.",
        "Sec. 4.2",
        "share of them in the layers as deep as 11 to 16 of 16",
        "97 of 100",
        "More than 75 % and more than by chance; exact binomial interval.",
        _predictive,
        judge_predictive_upper,
        explain_predictive_upper,
    ),
    Claim(
        "predictive values agree",
        "values",
        "46 of these 100 values agree with at least one of their key's top-50 triggers.",
        "Sec. 4.2",
        "share of them whose first token follows at least one trigger",
        "46 of 100",
        "Between 31 and 61 %, fifteen points around the published share, and more than of all values; exact binomial "
        "intervals.",
        _predictive,
        judge_predictive_agree,
    ),
)

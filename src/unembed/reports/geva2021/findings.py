"""The claims of Geva et al. 2021: one row each, with what is measured for it and the test that judges it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import rankdata

from unembed.reports.claims import Claim, Judgement, above, below, verdict_of, within
from unembed.reports.document.intervals import (
    Measured,
    difference_of,
    mean_of,
    paired_difference,
    share_of,
)
from unembed.reports.document.numbers import format_interval, format_number
from unembed.reports.geva2021.formatting import first_upper, stop_words
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.sections.aggregation import SHORT
from unembed.reports.geva2021.sections.refinement import breakdown, judge_compositions
from unembed.reports.geva2021.sections.values import BINS

Numbers = Mapping[str, Any]

FEWEST_PAIRS = 20
"""Compositions below which their kinds are not judged."""


def _percent(measured: Measured) -> str:
    return format_interval(measured, percent=True)


def _correlation(x: np.ndarray, y: np.ndarray, seed: int) -> Measured:
    """Spearman's rank correlation with its bootstrap interval over pairs; nothing for fewer than ten or constants."""
    known = ~(np.isnan(x) | np.isnan(y))
    x, y = x[known], y[known]
    if len(x) < 10 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Measured(float("nan"), float("nan"), float("nan"), len(x))
    a, b = rankdata(x), rankdata(y)
    a, b = (a - a.mean()) / a.std(), (b - b.mean()) / b.std()
    product = a * b
    whole = mean_of(product, seed=seed)
    return Measured(whole.value, max(whole.low, -1.0), min(whole.high, 1.0), len(x))


def _layer_of(m: Measurements) -> np.ndarray:
    """The layer of every key."""
    return np.repeat(np.arange(m.triggers.n_layers), np.diff(m.triggers.bounds))


# Section 3: keys.


def _patterns(m: Measurements) -> Numbers:
    found, upper, seed = m.patterns, first_upper(m.triggers.n_layers), m.seed
    keys, random = found["layer"] >= 0, found["layer"] < 0
    high, low = keys & (found["layer"] >= upper), keys & (found["layer"] < upper)
    number, covered = found["n_shallow"] + found["n_semantic"], 1 - found["none"]
    shallow, semantic = found["shallow"] + found["both"], found["semantic"] + found["both"]
    return {
        "some": share_of(int((number[keys] > 0).sum()), int(keys.sum())),
        "number": mean_of(number[keys], seed=seed),
        "covered": mean_of(covered[keys], seed=seed, share=True),
        "by_chance": mean_of(covered[random], seed=seed, share=True),
        "semantic_rises": difference_of(semantic[high], semantic[low], seed=seed),
        "shallow_falls": difference_of(shallow[low], shallow[high], seed=seed),
        "upper": upper,
    }


def judge_every_key(some: Measured, number: Measured, **_: Any) -> Judgement:
    """Keys with a pattern, and patterns per key."""
    here = f"{_percent(some)} of {some.n} keys have a pattern by rule, {format_interval(number)} patterns on average."
    return Judgement(here, verdict_of(above(some, 0.9), within(number, 1.8, 7.2)))


def judge_covered(covered: Measured, by_chance: Measured, **_: Any) -> Judgement:
    """Prefixes in a pattern, beside random ones."""
    here = f"{_percent(covered)} of trigger prefixes are in a pattern by rule, {_percent(by_chance)} of random ones."
    return Judgement(here, verdict_of(within(covered, 0.55, 0.9), above(covered, by_chance.high)))


def judge_shallow_to_semantic(semantic_rises: Measured, shallow_falls: Measured, upper: int, **_: Any) -> Judgement:
    """Kinds of patterns in lower and upper layers."""
    here = (
        f"From the layers below {upper} to those from it on, prefixes in semantic patterns change by "
        f"{_percent(semantic_rises)} and those in shallow ones by {_percent(_minus(shallow_falls))}."
    )
    return Judgement(here, verdict_of(above(semantic_rises, 0), above(shallow_falls, 0)))


def _minus(m: Measured) -> Measured:
    return Measured(-m.value, -m.high, -m.low, m.n)


def _perturbation(m: Measurements) -> Numbers | None:
    if not len(m.perturbed):
        return None
    layer = m.perturbed[:, 0]
    with np.errstate(invalid="ignore"):
        known = ~np.isnan(m.changes)
        counts = known.sum(axis=1)
        sums = np.where(known, m.changes, 0.0).sum(axis=1)
        per_key = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)  # key kind
    by_layer = [bool(np.nanmean(per_key[layer == n, 1]) < np.nanmean(per_key[layer == n, 0])) for n in np.unique(layer)]
    return {
        "first": mean_of(per_key[:, 0], seed=m.seed),
        "last": mean_of(per_key[:, 1], seed=m.seed),
        "lead": paired_difference(per_key[:, 0], per_key[:, 1], seed=m.seed),
        "layers": sum(by_layer),
        "n_layers": len(by_layer),
        "trend": _correlation(layer.astype(float), per_key[:, 1], m.seed),
    }


def judge_end(first: Measured, last: Measured, lead: Measured, layers: int, n_layers: int, **_: Any) -> Judgement:
    """The last token beside the first."""
    here = (
        f"Without the last token coefficients change by {_percent(last)}, without the first by {_percent(first)}; the "
        f"last matters more in {layers} of {n_layers} layers."
    )
    return Judgement(here, verdict_of(above(lead, 0), layers > n_layers / 2))


def judge_easing(trend: Measured, **_: Any) -> Judgement:
    """The last token, by layer."""
    here = f"Layer and change without the last token have a rank correlation of {format_interval(trend)} over keys."
    return Judgement(here, verdict_of(above(trend, 0)))


# Section 4: values.


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
        f"{_percent(low)} of the values agree in the layers below {upper}, {_percent(high)} from it on, and "
        f"{_percent(last)} in the last."
    )
    return Judgement(here, verdict_of(below(low, 0.005), above(high, low.high), above(last, 0.01)))


def judge_agreement_above_chance(whole: Measured, by_chance: float, one_token: float, **_: Any) -> Judgement:
    """The agreement rate beside two chances."""
    over = whole.value / by_chance if by_chance > 0 else float("inf")
    here = (
        f"{_percent(whole)} of all values agree, {format_number(whole.value / one_token)} times a random token and "
        f"{format_number(over)} times the same tokens in random pairs."
    )
    return Judgement(here, verdict_of(above(whole, 100 * one_token), above(whole, 10 * by_chance)))


def _ranks(m: Measurements) -> Numbers:
    a = m.agreement
    known = a.rank >= 0
    layer = _layer_of(m)
    medians = [
        float(np.median(a.rank[known & (layer == n)])) if (known & (layer == n)).any() else float("nan")
        for n in range(m.triggers.n_layers)
    ]
    trend = _correlation(layer[known].astype(float), a.rank[known].astype(float), m.seed)
    return {"medians": medians, "trend": trend, "d_vocab": m.lm.d_vocab}


def judge_ranks(medians: list[float], trend: Measured, d_vocab: int) -> Judgement:
    """The rank of the trigger's next token, by layer."""
    here = (
        f"Its median rank goes from {medians[0] + 1:,.0f} in the first layer to {medians[-1] + 1:,.0f} in the last, of "
        f"{d_vocab:,} tokens; the rank correlation with the layer is {format_interval(trend)} over keys."
    )
    # A drift that leaves the rank as it was on a logarithmic scale is not an improvement.
    return Judgement(here, verdict_of(below(trend, 0), bool(medians[-1] < medians[0] / 2)))


def _probability(m: Measurements) -> Numbers:
    a = m.agreement
    known = np.flatnonzero(a.target >= 0)
    order = known[np.argsort(a.probability[known], kind="stable")]
    bins = [share_of(int(a.agrees[part].sum()), len(part)) for part in np.array_split(order, BINS) if len(part)]
    return {"bins": bins, "trend": _correlation(a.probability[known], a.agrees[known].astype(float), m.seed)}


def judge_probability(bins: list[Measured], trend: Measured) -> Judgement:
    """Agreement by the largest probability."""
    here = (
        f"From {_percent(bins[0])} in the lowest eighth to {_percent(bins[-1])} in the highest; the rank correlation "
        f"is {format_interval(trend)} over values."
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
    here = (
        f"Of the {n} most predictive values {_percent(in_upper)} lie in layers from {upper} on, {even:.0%} by chance."
    )
    return Judgement(here, verdict_of(above(in_upper, max(even, 0.75))))


def judge_predictive_agree(some: Measured, usual: Measured, **_: Any) -> Judgement:
    """Agreeing triggers of the most predictive values."""
    here = f"{_percent(some)} of them follow at least one of their triggers, {_percent(usual)} of all values do."
    return Judgement(here, verdict_of(within(some, 0.31, 0.61), above(some, usual.high)))


# Section 5.1: aggregation.


def _active(m: Measurements) -> Numbers:
    return {"layers": [mean_of(row, seed=m.seed, share=True) for row in m.examples["above_zero"]]}


def judge_active(layers: list[Measured]) -> Judgement:
    """Active memories in every layer."""
    low, high = min(layers, key=lambda x: x.value), max(layers, key=lambda x: x.value)
    here = f"Between {_percent(low)} and {_percent(high)} of the memories have a coefficient above 0, by layer."
    return Judgement(here, verdict_of(*(within(x, 0.1, 0.5) for x in layers)))


def judge_active_drop(layers: list[Measured]) -> Judgement:
    """Where the fewest memories are active, and how few."""
    least = min(range(len(layers)), key=lambda n: layers[n].value)
    deepest = layers[least]
    here = (
        f"The fewest are active in layer {least} of {len(layers)} ({_percent(deepest)}); {_percent(layers[0])} are in "
        f"the first and {_percent(layers[-1])} in the last."
    )
    if len(layers) < 4:
        return Judgement(here, "cannot be told")
    middle = 0.4 <= least / (len(layers) - 1) <= 0.8
    return Judgement(here, verdict_of(middle, below(deepest, 2 / 3 * layers[0].value), below(deepest, layers[-1].low)))


def _zero(m: Measurements) -> Numbers:
    n = len(m.positions)
    return {
        "active": [share_of(int((~row).sum()), n) for row in m.examples["any_active"]],
        "all_memories": [share_of(int((~row).sum()), n) for row in m.examples["any_value"]],
    }


def judge_zero(active: list[Measured], all_memories: list[Measured]) -> Judgement:
    """Examples in which the layer predicts what no memory does."""
    least = min(range(len(active)), key=lambda n: active[n].value)
    here = (
        f"In at least {_percent(active[least])} of the examples (layer {least}) the layer's prediction differs from "
        f"every active memory's, in at least {_percent(min(all_memories, key=lambda x: x.value))} from every memory's."
    )
    return Judgement(here, verdict_of(*(above(x, 0.68) for x in active)))


def _agreeing(m: Measurements) -> Numbers | None:
    e = m.examples
    layers, which = np.nonzero(e["any_active"])
    if len(which) < FEWEST_PAIRS:
        return None
    stop = stop_words(m.lm)
    n_layers, n = e["update"].shape
    short = m.example_text.prefix_lengths(m.positions) < SHORT
    everyone = np.tile(np.arange(n), n_layers)
    return {
        "stops": mean_of(stop[e["update"][layers, which]], units=which, seed=m.seed, share=True),
        "all_stops": mean_of(stop[e["update"]].ravel(), units=everyone, seed=m.seed, share=True),
        "shorts": mean_of(short[which], units=which, seed=m.seed, share=True),
        "all_shorts": share_of(int(short.sum()), n),
    }


def judge_stops(stops: Measured, all_stops: Measured, **_: Any) -> Judgement:
    """Stop words among agreeing cases and among all predictions."""
    here = (
        f"In {_percent(stops)} of the agreeing cases the token is a stop word, against {_percent(all_stops)} of all "
        "layers' predictions."
    )
    return Judgement(here, verdict_of(within(stops, 0.45, 0.75), above(stops, all_stops.high)))


def judge_shorts(shorts: Measured, all_shorts: Measured, **_: Any) -> Judgement:
    """Short prefixes among agreeing cases and among all examples."""
    here = (
        f"In {_percent(shorts)} of the agreeing cases the prefix has fewer than {SHORT} tokens, against "
        f"{_percent(all_shorts)} of all examples."
    )
    return Judgement(here, verdict_of(within(shorts, 0.28, 0.58), above(shorts, all_shorts.high)))


# Section 5.2: refinement.


def _refinement(m: Measurements) -> Numbers:
    e, n_layers, n, seed = m.examples, m.triggers.n_layers, len(m.positions), m.seed
    match = e["residual"] == e["output"][-1]  # layer example
    bottom = max(1, round(n_layers / 4)) if n_layers > 1 else 0
    upper = first_upper(n_layers)
    steps = np.diff(match.astype(float), axis=0)  # growth into the next layer, layer-1 example
    steep, flat = steps[upper:], steps[:upper]
    probability = e["probability"].astype(float)
    changed = e["output"] != e["residual"]
    kinds = breakdown(e["residual"], e["update"], e["output"])
    composed = kinds["composition"] | kinds["joint"]
    layers, which = np.nonzero(changed)
    return {
        "decided": share_of(int(match[bottom].sum()), n),
        "bottom": bottom,
        "steep": mean_of(steep.mean(axis=0), seed=seed) if len(steep) else None,
        "flat": mean_of(flat.mean(axis=0), seed=seed) if len(flat) else None,
        "growth": (
            paired_difference(steep.mean(axis=0), 2 * flat.mean(axis=0), seed=seed)
            if len(steep) and len(flat)
            else None
        ),
        "steps": [mean_of(step, seed=seed) for step in np.diff(probability, axis=0)],
        "rise": paired_difference(probability[-1], probability[0], seed=seed),
        "alone": [share_of(int(row.sum()), n) for row in kinds["residual"]],
        "composed": mean_of(composed[layers, which], units=which, seed=seed, share=True),
        "upper": upper,
    }


def judge_decided(decided: Measured, bottom: int, **_: Any) -> Judgement:
    """Predictions that the bottom layers already hold."""
    here = f"In {_percent(decided)} the residual that enters FFN {bottom} has the final prediction first."
    return Judgement(here, verdict_of(within(decided, 0.25, 0.42)))


def judge_growth(
    steep: Measured | None, flat: Measured | None, growth: Measured | None, upper: int, **_: Any
) -> Judgement:
    """Growth per layer above and below the upper layers' start."""
    if steep is None or flat is None or growth is None:
        return Judgement("The model has too few layers to compare growth.", "cannot be told")
    here = f"The share grows by {_percent(steep)} a layer from layer {upper} on and by {_percent(flat)} below it."
    return Judgement(here, verdict_of(above(growth, 0), above(steep, 0)))


def judge_rise(steps: list[Measured], rise: Measured, **_: Any) -> Judgement:
    """The residual's probability of the prediction, layer by layer."""
    falls = sum(step.high < 0 for step in steps)
    here = (
        f"It rises by {_percent(rise)} on average from the first layer to the last, and falls from one layer to the "
        f"next in {falls} of {len(steps)} steps."
    )
    return Judgement(here, verdict_of(falls == 0, above(rise, 0.05)))


def judge_alone(alone: list[Measured], **_: Any) -> Judgement:
    """Outputs that follow the residual alone."""
    low, high = min(alone, key=lambda x: x.value), max(alone, key=lambda x: x.value)
    here = f"The output follows the residual alone in {_percent(low)} to {_percent(high)} of the examples, by layer."
    return Judgement(here, verdict_of(*(within(x, 0.55, 0.9) for x in alone)))


def judge_composed(composed: Measured, **_: Any) -> Judgement:
    """Changed outputs that neither part has first."""
    here = f"{_percent(composed)} of the changed outputs are neither the residual's nor the update's token."
    return Judgement(here, verdict_of(above(composed, 0.5)))


def _compositions(m: Measurements) -> Numbers:
    found = judge_compositions(m)
    return {
        "related": share_of(int(found.related.sum()), int(found.known.sum())),
        "n_pairs": len(found.known),
    }


def judge_related(related: Measured, n_pairs: int) -> Judgement:
    """Related tokens among the compositions of the last layer."""
    here = f"{_percent(related)} of the {related.n} pairs that can be judged (of {n_pairs}) are related, by rule."
    if related.n < FEWEST_PAIRS:
        return Judgement(here, "cannot be told")
    return Judgement(here, verdict_of(within(related, 0.19, 0.49)))


CLAIMS: tuple[Claim[Measurements], ...] = (
    Claim(
        "every key",
        "patterns",
        "For every key, at least one pattern was identified, 3.6 on average.",
        "Sec. 3.2",
        "keys with a pattern by rule, and patterns per key",
        "100 % of 160 keys, 3.6 patterns",
        "More than 90 % of the keys, and between half and twice the paper's number of patterns; exact binomial "
        "interval and bootstrap over keys.",
        _patterns,
        judge_every_key,
    ),
    Claim(
        "prefixes in patterns",
        "patterns",
        "The vast majority of trigger prefixes were associated with at least one pattern.",
        "Sec. 3.2, Fig. 2",
        "share of trigger prefixes in a pattern by rule",
        "65 to 80 %, by people",
        "Between 55 and 90 %, ten points around the published band because rules stand in for people, and above sets "
        "of random prefixes; bootstrap over keys.",
        _patterns,
        judge_covered,
    ),
    Claim(
        "shallow to semantic",
        "patterns",
        "Lower layers are dominated by shallow patterns, upper layers by semantic ones.",
        "Sec. 3.2, Fig. 2",
        "prefixes in semantic and in shallow patterns, upper less lower layers",
        "shallow in layers 1 to 9 of 16, semantic in 10 to 16",
        "Semantic patterns gain and shallow ones lose, both beyond their intervals; bootstrap over keys.",
        _patterns,
        judge_shallow_to_semantic,
    ),
    Claim(
        "the end matters",
        "perturbation",
        "Removing the last token has a stronger impact on the memory coefficient than removing the first.",
        "Sec. 3.2, Fig. 3",
        "relative change of the coefficient without the first and without the last token",
        "about -10 to -15 % and -20 to -70 %, by layer (read off Fig. 3 by a third party)",
        "The paired difference is above 0, and the last token matters more in most layers; bootstrap over keys.",
        _perturbation,
        judge_end,
    ),
    Claim(
        "upper layers are less shallow",
        "perturbation",
        "In upper layers removing the last token has less impact.",
        "Sec. 3.2, Fig. 3",
        "rank correlation of layer and relative change without the last token, over keys",
        "from about -65 % in layer 1 to -20 % in layer 16 (read off Fig. 3 by a third party)",
        "The correlation over all layers is above 0, not only the difference of the ends; bootstrap over keys.",
        _perturbation,
        judge_easing,
    ),
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
    Claim(
        "active memories",
        "active",
        "Between 10 and 50 % of the memories are active for a typical example.",
        "Sec. 5.1, Fig. 7",
        "share of coefficients above 0, by layer",
        "10 to 50 %",
        "Every layer lies between 10 and 50 %; bootstrap over examples.",
        _active,
        judge_active,
    ),
    Claim(
        "active memories drop",
        "active",
        "The number of active memories drops towards layer 10 of 16.",
        "Sec. 5.1, Fig. 7",
        "layer with the fewest active memories, and their share",
        "from 40 to 50 % down to 10 to 15 % in layer 10 of 16 (read off Fig. 7 by a third party)",
        "The minimum lies between 0.4 and 0.8 of the depth, below two thirds of the first layer and below the last; "
        "bootstrap over examples.",
        _active,
        judge_active_drop,
    ),
    Claim(
        "zero agreement",
        "composition",
        "In at least 68 % of the examples the layer's prediction differs from every memory's.",
        "Sec. 5.1, Fig. 8",
        "share of examples in which no active memory has the layer's first token first, by layer",
        "at least about 68 % in every layer",
        "Every layer lies above 68 %; exact binomial intervals over examples.",
        _zero,
        judge_zero,
    ),
    Claim(
        "stop words",
        "composition",
        "Where a memory agrees, the token is a common stop word in 60 % of the cases.",
        "Sec. 5.1",
        "stop words among agreeing cases",
        "60 %",
        "Between 45 and 75 %, and above the share of stop words in all layers' predictions; bootstrap over examples, "
        "whose layers are resampled together.",
        _agreeing,
        judge_stops,
    ),
    Claim(
        "short prefixes",
        "composition",
        "Where a memory agrees, the prefix has fewer than five tokens in 43 % of the cases.",
        "Sec. 5.1",
        "short prefixes among agreeing cases",
        "43 %",
        "Between 28 and 58 %, and above the share of short prefixes in all examples; bootstrap over examples, whose "
        "layers are resampled together.",
        _agreeing,
        judge_shorts,
    ),
    Claim(
        "decided early",
        "refinement",
        "Roughly a third of the predictions are determined in the bottom few layers.",
        "Sec. 5.2, Fig. 9",
        "share of examples whose prediction the residual already has a quarter of the way up",
        "roughly a third",
        "Between 25 and 42 %, a quarter around a third; exact binomial interval over examples.",
        _refinement,
        judge_decided,
    ),
    Claim(
        "fast growth",
        "refinement",
        "This number grows rapidly from layer 10 onwards.",
        "Sec. 5.2, Fig. 9",
        "growth of that share per layer, from the layer as deep as 11 of 16 on and below it",
        "rapid growth from layer 10 of 16",
        "More than twice the growth of the layers below; bootstrap over examples.",
        _refinement,
        judge_growth,
    ),
    Claim(
        "probability grows",
        "refinement",
        "The probability that the residual gives to the prediction grows through the layers.",
        "Sec. 5.2, Fig. 10",
        "probability of the final prediction in the residual, by layer",
        "medians near 0 up to layer 7, 0.6 to 0.8 in layers 14 to 16 (by eye)",
        "It falls in no step beyond its interval and rises by more than 5 points in all; bootstrap over examples.",
        _refinement,
        judge_rise,
    ),
    Claim(
        "follows the residual",
        "refinement",
        "In the vast majority of examples the layer's output follows the residual.",
        "Sec. 5.2, Fig. 11",
        "share of examples in which the output has the residual's token and the update another, by layer",
        "60 to 85 % (by eye)",
        "Every layer lies between 55 and 90 %, five points around the published band; exact binomial intervals over "
        "examples.",
        _refinement,
        judge_alone,
    ),
    Claim(
        "compromise",
        "refinement",
        "Where the output is another token, it is rarely the FFN's own but a compromise of both.",
        "Sec. 5.2, Fig. 11",
        "share of changed outputs that are neither part's first token",
        "most of them",
        "More than half; bootstrap over examples, whose layers are resampled together.",
        _refinement,
        judge_composed,
    ),
    Claim(
        "distant compositions",
        "last layer",
        "Of 100 last-layer compositions 66 go to a semantically distant token and 34 to a related one.",
        "Sec. 5.2",
        "related tokens among compositions of the last layer",
        "34 of 100 related, by hand",
        f"Between 19 and 49 % related, fifteen points around the published share; fewer than {FEWEST_PAIRS} pairs that "
        "can be judged tell nothing. Exact binomial interval over examples.",
        _compositions,
        judge_related,
    ),
)
"""Every finding of the report, in reading order."""

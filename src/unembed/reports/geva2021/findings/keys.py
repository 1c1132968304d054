"""The claims of section 3, keys capture input patterns: what triggers share, and what shortening does."""

from __future__ import annotations

from typing import Any

import numpy as np

from unembed.document.intervals import (
    Measured,
    difference_of,
    mean_of,
    paired_difference,
    rank_correlation,
    share_of,
)
from unembed.document.numbers import format_interval, percent, points
from unembed.reports.claims import Claim, Judgement, Numbers, above, verdict_of, within
from unembed.reports.geva2021.formatting import first_upper
from unembed.reports.geva2021.measurements import Measurements


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
        "semantic_rises": difference_of(semantic[high], semantic[low], seed=seed, share=True),
        "shallow_falls": difference_of(shallow[low], shallow[high], seed=seed, share=True),
        "upper": upper,
    }


def judge_every_key(some: Measured, number: Measured, **_: Any) -> Judgement:
    """Keys with a pattern, and patterns per key."""
    here = f"{percent(some)} of {some.n} keys have a pattern by rule, {format_interval(number)} patterns on average."
    return Judgement(here, verdict_of(above(some, 0.9), within(number, 1.8, 7.2)))


def judge_covered(covered: Measured, by_chance: Measured, **_: Any) -> Judgement:
    """Prefixes in a pattern, compared with random ones."""
    here = f"{percent(covered)} of trigger prefixes are in a pattern by rule, {percent(by_chance)} of random ones."
    return Judgement(here, verdict_of(within(covered, 0.55, 0.9), above(covered, by_chance.high)))


def judge_shallow_to_semantic(semantic_rises: Measured, shallow_falls: Measured, upper: int, **_: Any) -> Judgement:
    """Kinds of patterns in lower and upper layers."""
    here = (
        f"From the layers below {upper} to layer {upper} and above, the share of prefixes in semantic patterns changes "
        f"by {points(semantic_rises)} and that of prefixes in shallow ones by {points(_minus(shallow_falls))}."
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
        "trend": rank_correlation(layer.astype(float), per_key[:, 1], seed=m.seed),
    }


def judge_end(first: Measured, last: Measured, lead: Measured, layers: int, n_layers: int, **_: Any) -> Judgement:
    """The last token compared with the first."""
    here = (
        f"Without the last token coefficients change by {percent(last)}, without the first by {percent(first)}; the "
        f"last matters more in {layers} of {n_layers} layers."
    )
    return Judgement(here, verdict_of(above(lead, 0), layers > n_layers / 2))


def judge_easing(trend: Measured, **_: Any) -> Judgement:
    """The last token, by layer."""
    here = (
        "Between the layer of a key and the change of its coefficient without the last token the rank correlation is "
        f"{format_interval(trend)}."
    )
    return Judgement(here, verdict_of(above(trend, 0)))


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
)

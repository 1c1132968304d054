"""The claims of section 5.2: scores across layers, extreme sub-updates and their clusters."""

from __future__ import annotations

from typing import Any

import numpy as np

from unembed.document.intervals import Measured, difference_of, mean_of, ratio_of, share_of
from unembed.document.numbers import format_interval, format_number, format_percent, percent, points
from unembed.memories.event_scores import candidate_scores
from unembed.reports.claims import Claim, Judgement, Numbers, above, below, verdict_of
from unembed.reports.geva2022.findings.thresholds import AT_LEAST, FEWEST
from unembed.reports.geva2022.measurements import Measurements
from unembed.reports.geva2022.sections.layers import EASY, SHORT, frequent, frequently_active, is_rare, top_ids

FEWEST_VALUES = 5
"""Values of a group below which its depth is not judged."""
DRAWS = 200
"""Random sets of sub-updates compared with the extreme ones."""


def _figure_3(m: Measurements) -> Numbers | None:
    if m.sample.n_layers < 4:
        return None
    scores = candidate_scores(m.sample, basis=m.options.basis)  # layer example 10
    return {
        "means": [mean_of(row.mean(axis=-1), seed=m.seed) for row in scores],
        "maxima": scores.max(axis=-1),
        "minima": scores.min(axis=-1),
        "seed": m.seed,
    }


def _last_layers(n_layers: int) -> int:
    """Layers of the divergence at the top: two of 24 in GPT2 medium, three of 16 in WikiLM."""
    return max(1, round(n_layers / 7))


def _top(n_layers: int) -> str:
    """The layers of the divergence, in words."""
    last = _last_layers(n_layers)
    return "the last layer" if last == 1 else f"the last {last} layers"


def judge_means(means: list[Measured], **_: Any) -> Judgement:
    """Mean scores below the last layers."""
    earlier = means[: len(means) - _last_layers(len(means))]
    positive, negative = sum(x.low > 0 for x in earlier), sum(x.high < 0 for x in earlier)
    here = (
        f"Of the {len(earlier)} layers below {_top(len(means))}, the mean score lies above 0 in {positive} and below 0 "
        f"in {negative}; the lowest is {format_interval(min(earlier, key=lambda x: x.value))}."
    )
    holds = False if negative else True if positive > len(earlier) / 2 else None
    return Judgement(here, verdict_of(holds))


def judge_peaks(maxima: np.ndarray, seed: int, **_: Any) -> Judgement:
    """Where the largest maximum lies, below the last layers."""
    n_layers = len(maxima)
    earlier = maxima[: n_layers - _last_layers(n_layers)]
    by_layer = earlier.mean(axis=1)
    peak = int(np.argmax(by_layer))
    size = mean_of(earlier[peak], seed=seed)
    rest = np.delete(by_layer, peak)
    prominent = ratio_of(earlier[peak], np.full(2, np.median(rest)), seed=seed) if len(rest) else None
    here = (
        f"Below {_top(n_layers)} of {n_layers} the mean of the largest score peaks in layer {peak} "
        f"({format_interval(size)}); the median of the other layers is {format_number(float(np.median(rest)))}."
    )
    return Judgement(
        here,
        verdict_of(
            above(size, AT_LEAST),
            None if prominent is None else above(prominent, 1.5),
            peak <= 11 / 16 * (n_layers - 1),
        ),
    )


def judge_strongly_down(minima: np.ndarray, seed: int, **_: Any) -> Judgement:
    """Minima of the last layers compared with those of the others."""
    n_layers, last = len(minima), _last_layers(len(minima))
    # An example is the drawn unit: its layers are averaged first.
    top, rest = minima[n_layers - last :].mean(axis=0), minima[: n_layers - last].mean(axis=0)
    ratio, size = ratio_of(top, rest, seed=seed), mean_of(top, seed=seed)
    here = (
        f"In {_top(n_layers)} of {n_layers} the smallest of the ten scores is {format_interval(size)} on average, in "
        f"the others {format_interval(mean_of(rest, seed=seed))}."
    )
    return Judgement(here, verdict_of(below(size, -AT_LEAST), above(ratio, 2)))


def _few_values(m: Measurements) -> Numbers | None:
    extreme, sample, clusters = m.extreme, m.sample, m.clusters
    if len(extreme) < FEWEST:
        return None
    sizes, n_values = np.bincount(clusters.labels), len(clusters.labels)
    number = clusters.labels[np.lexsort((clusters.memory[:, 1], clusters.memory[:, 0]))]
    width = n_values // sample.n_layers

    def covered(layer: np.ndarray, index: np.ndarray) -> float:
        of_rows = number[layer * width + index]
        return float(sizes[np.unique(of_rows[frequently_active(of_rows)])].sum() / n_values)

    random = np.random.default_rng([m.seed, 22])
    layers, dominant = np.broadcast_arrays(np.arange(sample.n_layers)[:, None, None], sample.dominant)
    layers, dominant = layers.ravel(), dominant.ravel()
    drawn = [random.choice(len(dominant), len(extreme), replace=False) for _ in range(DRAWS)]
    return {
        "covered": covered(extreme.layer, extreme.index),
        "by_chance": np.array([covered(layers[rows], dominant[rows]) for rows in drawn]),
    }


def judge_few_values(covered: float, by_chance: np.ndarray) -> Judgement:
    """Values in clusters of extreme sub-updates compared with those of random dominant ones."""
    low, high = np.quantile(by_chance, (0.025, 0.975))
    here = (
        f"{format_percent(covered)} of the values lie in a cluster that is frequently active in extreme updates; for "
        f"as many random dominant sub-updates it is {format_percent(by_chance.mean())} [{format_number(100 * low)}, "
        f"{format_number(100 * high)}]."
    )
    chance = Measured(float(by_chance.mean()), float(low), float(high), len(by_chance))
    return Judgement(here, verdict_of(covered < 0.05, above(chance, 2 * covered)))


def _groups(m: Measurements) -> Numbers:
    memories = frequent(m).memories
    rare = is_rare(m.token_counts, top_ids(m, memories)) if len(memories) else np.zeros(0, dtype=bool)
    depth = memories[:, 0] / max(m.sample.n_layers - 1, 1)
    return {"rare": depth[rare], "common": depth[~rare], "seed": m.seed}


def judge_groups(rare: np.ndarray, common: np.ndarray, seed: int) -> Judgement:
    """Depth of values for rare and for common tokens."""
    if min(len(rare), len(common)) < FEWEST_VALUES:
        here = f"Extreme values that promote rare tokens: {len(rare)}; common ones: {len(common)}; too few to compare."
        return Judgement(here, "inconclusive")
    lead = difference_of(rare, common, seed=seed)
    here = (
        f"{len(rare)} extreme values promote rare tokens, at {rare.mean():.0%} of the depth on average; {len(common)} "
        f"promote common ones, at {common.mean():.0%}, a difference of {points(lead)}."
    )
    return Judgement(here, verdict_of(above(lead, 0), bool(rare.mean() >= 0.5)))


def _inputs(m: Measurements) -> Numbers | None:
    if len(m.extreme) < FEWEST:
        return None
    easy = (m.text_lengths <= SHORT) | (m.sample.final_probability >= EASY)
    return {
        "extreme": mean_of(easy[m.extreme.example], units=m.extreme.example, seed=m.seed, share=True),
        "all": share_of(int(easy.sum()), len(easy)),
    }


def judge_inputs(extreme: Measured, **other: Measured) -> Judgement:
    """Inputs on which extreme sub-updates are active."""
    whole = other["all"]
    here = (
        f"{percent(extreme)} of the appearances of extreme sub-updates have a prefix of at most {SHORT} tokens or a "
        f"prediction of probability {EASY} or more; of all examples {percent(whole)} do."
    )
    return Judgement(here, verdict_of(above(extreme, 0.5), above(extreme, whole.high)))


CLAIMS: tuple[Claim[Measurements], ...] = (
    Claim(
        "non-negative means",
        "layers",
        "Until the last few layers, maximum and minimum scores are distributed around non-negative mean scores.",
        "Sec. 5.2, Fig. 3",
        "mean of the ten scores of the top candidate, by layer below the last seventh",
        "non-negative in every layer up to 22 of 24 (GPT2) and 13 of 16 (WikiLM)",
        "No layer has a mean whose interval lies below 0, and more than half of them have one above 0; bootstrap over "
        "examples.",
        _figure_3,
        judge_means,
    ),
    Claim(
        "early peaks",
        "layers",
        "There are prominent peaks in maximum scores in early and middle layers.",
        "Sec. 5.2, Fig. 3",
        "largest of the ten scores of the top candidate, by layer below the last seventh",
        "peaks in layers 3 to 5 of 24 (GPT2) and 4 to 11 of 16 (WikiLM)",
        f"The peak lies in the first 11/16 of the depth, is above {AT_LEAST} and more than 1.5 times the median of the "
        "other layers; bootstrap over examples.",
        _figure_3,
        judge_peaks,
    ),
    Claim(
        "strongly down",
        "layers",
        "Scores diverge in the last layers, with strong negative minimum scores: dominant sub-updates push the top "
        "candidate down.",
        "Sec. 5.2, Fig. 3",
        "smallest of the ten scores of the top candidate, last seventh of the layers over the others",
        "strongly negative in layers 23-24 of GPT2 medium and 14-16 of WikiLM",
        f"The mean minimum of these layers is below -{AT_LEAST} (odds divided by 1.1) and more than twice that of the "
        "others; bootstrap over examples, whose layers are averaged first.",
        _figure_3,
        judge_strongly_down,
    ),
    Claim(
        "few values",
        "layers",
        "The clusters of extreme sub-updates cover only a small fraction of the value vectors.",
        "Sec. 5.2",
        "share of values in a cluster that is frequently active in extreme updates",
        "1.7 % in GPT2, 1.1 % in WikiLM",
        "The share is below 5 %, three times the published ones, and less than half of what as many random dominant "
        "sub-updates cover in 95 % of the draws: any few sub-updates lie in few clusters.",
        _few_values,
        judge_few_values,
    ),
    Claim(
        "two groups",
        "layers",
        "One group, in the upper layers, promotes generally unlikely tokens; the other, spread over all layers, "
        "promotes common tokens.",
        "Sec. 5.2",
        "mean depth of extreme values that promote rare tokens less that of the others",
        "upper layers against all layers; no numbers",
        f"The difference is above 0 and the rare group lies in the upper half; groups of fewer than {FEWEST_VALUES} "
        "values are not compared. Bootstrap over values.",
        _groups,
        judge_groups,
    ),
    Claim(
        "easy inputs",
        "layers",
        "Extreme sub-updates are mostly active for short inputs or when the target can be easily inferred.",
        "Sec. 5.2",
        "share of their appearances with a short prefix or a likely prediction",
        "mostly (three tokens or fewer: a third party's words; the number is lost in the text at hand)",
        "More than half of their appearances, and more than of all examples; bootstrap over examples, whose "
        "appearances are resampled together.",
        _inputs,
        judge_inputs,
    ),
)

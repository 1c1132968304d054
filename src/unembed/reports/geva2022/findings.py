"""The claims of Geva et al. 2022: one row each, with what is measured for it and the test that judges it.

Scores are logit units: a sub-update of score s multiplies the odds of its token by exp(s) (Sec. 3, Eq. 2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from unembed.concepts.token_classes import COUNTED
from unembed.memories.event_sample import DOMINANT
from unembed.memories.event_scores import Kind, candidate_scores, counted_events, event_scores, saturation_shares
from unembed.reports.claims import Claim, Judgement, above, below, verdict_of, within
from unembed.reports.document.intervals import Measured, difference_of, mean_of, paired_difference, ratio_of, share_of
from unembed.reports.document.numbers import format_interval, format_number, format_percent
from unembed.reports.geva2022.measurements import RANDOM, UPDATES, VALUES, Measurements
from unembed.reports.geva2022.sections.concepts import WITH_STOP_WORDS
from unembed.reports.geva2022.sections.layers import EASY, SHORT, frequent, frequently_active, is_rare, top_ids

Numbers = Mapping[str, Any]

FEWEST = 20
"""Events, or sub-updates, below which nothing is judged."""
AT_LEAST = 0.1
"""Score from which on a sub-update matters: it multiplies the odds of its token by 1.1."""
FEWEST_VALUES = 5
"""Values of a group below which its depth is not judged."""
DRAWS = 200
"""Random sets of sub-updates beside the extreme ones."""


def _percent(measured: Measured) -> str:
    return format_interval(measured, percent=True)


def _number(value: float) -> str:
    return format_number(float(value))


# Section 4: concepts.


def _coverage(m: Measurements) -> Numbers:
    found = {name: m.concepts[name] for name in (VALUES, RANDOM, UPDATES)}
    values, random, updates = (found[name].coverage(COUNTED) for name in (VALUES, RANDOM, UPDATES))
    return {
        "values": mean_of(values, seed=m.seed, share=True),
        "random": mean_of(random, seed=m.seed, share=True),
        "updates": mean_of(updates, units=m.update_prefixes, seed=m.seed, share=True),
        "against_random": ratio_of(values, random, seed=m.seed),
        "updates_against_values": ratio_of(updates, values, units_a=m.update_prefixes, seed=m.seed),
    }


def judge_values_against_random(values: Measured, random: Measured, against_random: Measured, **_: Any) -> Judgement:
    """Concepts in values beside random vectors."""
    here = (
        f"{_percent(values)} of the top tokens of values belong to a concept, {_percent(random)} of those of random "
        f"vectors: {format_interval(against_random)} times as many."
    )
    return Judgement(here, verdict_of(above(against_random, 1.5)))


def judge_updates_against_values(
    values: Measured, updates: Measured, updates_against_values: Measured, **_: Any
) -> Judgement:
    """Concepts in whole updates beside values."""
    here = (
        f"{_percent(updates)} of the top tokens of whole updates belong to a concept, {_percent(values)} of those of "
        f"values: {format_interval(updates_against_values)} times as many."
    )
    return Judgement(here, verdict_of(below(updates_against_values, 2 / 3)))


def _stop_words(m: Measurements) -> Numbers:
    added = {
        name: m.concepts[name].coverage(WITH_STOP_WORDS) - m.concepts[name].coverage(COUNTED)
        for name in (VALUES, UPDATES)
    }
    return {
        "in_updates": mean_of(added[UPDATES], units=m.update_prefixes, seed=m.seed),
        "in_values": mean_of(added[VALUES], seed=m.seed),
        "difference": difference_of(added[UPDATES], added[VALUES], units_a=m.update_prefixes, seed=m.seed),
    }


def judge_stop_words(in_updates: Measured, in_values: Measured, difference: Measured) -> Judgement:
    """What stop words add."""
    here = (
        f"Stop words and punctuation add {_percent(in_updates)} of the top tokens of updates and {_percent(in_values)} "
        f"of those of values, a difference of {_percent(difference)}."
    )
    return Judgement(here, verdict_of(above(difference, 0.05)))


def _number_of_concepts(m: Measurements) -> Numbers:
    counts = {name: m.concepts[name].number().astype(np.float64) for name in (VALUES, RANDOM)}
    return {
        "values": mean_of(counts[VALUES], seed=m.seed),
        "random": mean_of(counts[RANDOM], seed=m.seed),
        "difference": difference_of(counts[VALUES], counts[RANDOM], seed=m.seed),
    }


def judge_number_of_concepts(values: Measured, random: Measured, difference: Measured) -> Judgement:
    """Concepts per vector."""
    here = f"{format_interval(values)} concepts per value, {format_interval(random)} per random vector."
    return Judgement(here, verdict_of(above(values, 1), above(difference, 0)))


def _coverage_by_layer(m: Measurements) -> Numbers:
    share, at = m.concepts[VALUES].coverage(COUNTED), np.array(m.concepts[VALUES].layers)
    return {"layers": [mean_of(share[at == n], seed=m.seed, share=True) for n in range(m.lm.n_layers)]}


def judge_coverage_by_layer(layers: list[Measured]) -> Judgement:
    """The share in every layer."""
    low, high = min(layers, key=lambda x: x.value), max(layers, key=lambda x: x.value)
    here = f"By layer between {_percent(low)} and {_percent(high)} of the top tokens of values belong to a concept."
    outside = any(x.high < 0.2 or x.low > 0.7 for x in layers)
    inside = all(0.2 <= x.value <= 0.7 for x in layers)
    return Judgement(here, verdict_of(False if outside else True if inside else None))


def _semantic(m: Measurements) -> Numbers:
    values, random = m.concepts[VALUES], m.concepts[RANDOM]
    semantic, other = values.coverage(("semantic",)), values.coverage(tuple(k for k in COUNTED if k != "semantic"))
    return {
        "semantic": mean_of(semantic, seed=m.seed, share=True),
        "other": mean_of(other, seed=m.seed, share=True),
        "difference": paired_difference(semantic, other, seed=m.seed),
        "random": mean_of(random.coverage(("semantic",)), seed=m.seed, share=True),
        "random_against_values": ratio_of(random.coverage(("semantic",)), semantic, seed=m.seed),
    }


def judge_mostly_semantic(semantic: Measured, other: Measured, difference: Measured, **_: Any) -> Judgement:
    """Semantic concepts beside the other kinds."""
    here = (
        f"{_percent(semantic)} of the top tokens of values are in semantic concepts, {_percent(other)} in syntactic "
        "concepts or names."
    )
    return Judgement(here, verdict_of(above(difference, 0), above(semantic, 0.05)))


def judge_random_not_semantic(
    semantic: Measured, random: Measured, random_against_values: Measured, **_: Any
) -> Judgement:
    """Semantic concepts in random vectors."""
    here = (
        f"{_percent(random)} of the top tokens of random vectors are in semantic concepts, {_percent(semantic)} of "
        "those of values."
    )
    return Judgement(here, verdict_of(below(random_against_values, 0.5)))


def _last_updates(m: Measurements) -> Numbers | None:
    found = m.concepts[UPDATES]
    share, at = found.coverage(COUNTED), np.array(found.layers)
    last = at >= m.lm.n_layers - 2
    if last.all():
        return None
    units = m.update_prefixes
    return {
        "last": mean_of(share[last], units=units[last], seed=m.seed, share=True),
        "earlier": mean_of(share[~last], units=units[~last], seed=m.seed, share=True),
        "ratio": ratio_of(share[last], share[~last], units_a=units[last], units_b=units[~last], seed=m.seed),
    }


def judge_last_updates(last: Measured, earlier: Measured, ratio: Measured) -> Judgement:
    """Concepts in the updates of the last two layers."""
    here = (
        f"{_percent(last)} of the top tokens of the last two layers' updates belong to a concept, {_percent(earlier)} "
        "in earlier layers."
    )
    return Judgement(here, verdict_of(below(ratio, 0.5), below(last, 0.1)))


# Section 5.1: events. An example has at most one event of each kind, so events are the drawn units.


def _scores(m: Measurements, kind: Kind, random: bool = False) -> np.ndarray:
    return event_scores(m.sample, kind, basis=m.options.basis, random=random)


def _maxima(m: Measurements) -> Numbers | None:
    saturation, elimination = _scores(m, "saturation"), _scores(m, "elimination")
    if min(len(saturation), len(elimination)) < FEWEST:
        return None
    return {
        "saturation": mean_of(saturation.max(axis=1), seed=m.seed),
        "elimination": mean_of(elimination.max(axis=1), seed=m.seed),
        "ratio": ratio_of(saturation.max(axis=1), elimination.max(axis=1), seed=m.seed),
    }


def judge_maxima(saturation: Measured, elimination: Measured, ratio: Measured) -> Judgement:
    """The strongest sub-update of a saturation beside that of an elimination."""
    here = (
        f"The strongest sub-update scores the promoted token {format_interval(saturation)} and the eliminated one "
        f"{format_interval(elimination)}, a ratio of {format_interval(ratio)}."
    )
    return Judgement(here, verdict_of(above(saturation, AT_LEAST), above(ratio, 1.5)))


def _spread(m: Measurements, kind: Kind) -> Numbers | None:
    scores = _scores(m, kind)
    if len(scores) < FEWEST:
        return None
    return {
        "most": mean_of(scores.max(axis=1), seed=m.seed),
        "least": mean_of(scores.min(axis=1), seed=m.seed),
        "ratio": _ratio_of_sizes(scores, m.seed),
    }


def _ratio_of_sizes(scores: np.ndarray, seed: int) -> Measured:
    """|mean of maxima| over |mean of minima|, both of the same resampled events."""
    most, least = scores.max(axis=1), scores.min(axis=1)
    random = np.random.default_rng(seed)
    rows = random.integers(0, len(scores), (1000, len(scores)))
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = np.abs(most[rows].mean(axis=1)) / np.abs(least[rows].mean(axis=1))
        value = abs(most.mean()) / abs(least.mean())
    low, high = np.quantile(drawn[~np.isnan(drawn)], (0.025, 0.975)) if np.isfinite(drawn).any() else (np.nan, np.nan)
    return Measured(float(value), float(low), float(high), len(scores))


def _sides(most: Measured, least: Measured, ratio: Measured) -> str:
    return (
        f"The largest of the ten scores is {format_interval(most)} on average, the smallest {format_interval(least)}, "
        f"a ratio of sizes of {format_interval(ratio)}."
    )


def judge_saturation_sides(most: Measured, least: Measured, ratio: Measured) -> Judgement:
    """A saturation's largest and smallest score."""
    return Judgement(_sides(most, least, ratio), verdict_of(above(most, AT_LEAST), above(ratio, 1.25)))


def judge_elimination_sides(most: Measured, least: Measured, ratio: Measured) -> Judgement:
    """An elimination's largest and smallest score."""
    return Judgement(_sides(most, least, ratio), verdict_of(above(most, AT_LEAST), within(ratio, 2 / 3, 1.5)))


def _candidate(m: Measurements) -> Numbers | None:
    layers, examples = counted_events(m.sample, "elimination")
    if len(layers) < FEWEST:
        return None
    change = m.sample.candidate_change[layers, examples]
    scores = _scores(m, "elimination")
    return {
        "mean": mean_of(scores.mean(axis=1), seed=m.seed),
        "falls": share_of(int((change < 0).sum()), len(change)),
        "change": mean_of(change, seed=m.seed),
    }


def judge_candidate(mean: Measured, falls: Measured, change: Measured) -> Judgement:
    """Whether an eliminated candidate falls by itself or because others rise."""
    here = (
        f"The dominant sub-updates score it {format_interval(mean)} on average; the whole update changes its own logit "
        f"by {format_interval(change)}, downwards in {_percent(falls)} of the eliminations."
    )
    return Judgement(here, verdict_of(below(falls, 0.5)))


def _by_random(m: Measurements) -> Numbers | None:
    dominant, random = _scores(m, "saturation"), _scores(m, "saturation", random=True)
    if len(dominant) < FEWEST:
        return None
    return {
        "dominant": mean_of(dominant.max(axis=1), seed=m.seed),
        "random": mean_of(random.max(axis=1), seed=m.seed),
        "ratio": ratio_of(random.max(axis=1), dominant.max(axis=1), seed=m.seed),
    }


def judge_by_random(dominant: Measured, random: Measured, ratio: Measured) -> Judgement:
    """Random sub-updates beside dominant ones."""
    here = (
        f"The largest score by ten random sub-updates is {format_interval(random)}, by the ten dominant ones "
        f"{format_interval(dominant)}."
    )
    return Judgement(here, verdict_of(above(dominant, AT_LEAST), below(ratio, 0.1)))


def _settled(m: Measurements) -> Numbers | None:
    if m.sample.n_layers < 3:
        return None
    shares, n = saturation_shares(m.sample), len(m.sample)
    last = m.sample.saturation == m.sample.n_layers - 1
    runner_up = m.sample.saturation == int(np.argmax(shares[:-1]))
    return {
        "before": share_of(int((~last).sum()), n),
        "last": share_of(int(last.sum()), n),
        "lead": paired_difference(last, runner_up, seed=m.seed),
    }


def judge_settled(before: Measured, last: Measured, lead: Measured) -> Judgement:
    """When predictions settle."""
    here = (
        f"{_percent(before)} of the predictions settle before the last layer and {_percent(last)} in it, "
        f"{_percent(lead)} more than in the next most frequent layer."
    )
    return Judgement(here, verdict_of(above(before, 0.5), above(lead, 0)))


# Section 5.2: layers.


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


def judge_means(means: list[Measured], **_: Any) -> Judgement:
    """Mean scores below the last layers."""
    earlier = means[: len(means) - _last_layers(len(means))]
    positive, negative = sum(x.low > 0 for x in earlier), sum(x.high < 0 for x in earlier)
    here = (
        f"Of the {len(earlier)} layers below the last {_last_layers(len(means))}, {positive} have a mean score above 0 "
        f"and {negative} one below; the least is {format_interval(min(earlier, key=lambda x: x.value))}."
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
        f"Below the last {_last_layers(n_layers)} layers the maximum is largest in layer {peak} of {n_layers} "
        f"({format_interval(size)}); the median of the other layers is {_number(np.median(rest))}."
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
    """Minima of the last layers beside those of the others."""
    n_layers, last = len(minima), _last_layers(len(minima))
    # An example is the drawn unit: its layers are averaged first.
    top, rest = minima[n_layers - last :].mean(axis=0), minima[: n_layers - last].mean(axis=0)
    ratio, size = ratio_of(top, rest, seed=seed), mean_of(top, seed=seed)
    here = (
        f"In the last {last} of {n_layers} layers the smallest of the ten scores is {format_interval(size)} on "
        f"average, in the others {format_interval(mean_of(rest, seed=seed))}."
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
    """Values in clusters of extreme sub-updates beside those of random dominant ones."""
    low, high = np.quantile(by_chance, (0.025, 0.975))
    here = (
        f"{format_percent(covered)} of the values lie in a cluster that is frequently active in extreme updates; for "
        f"as many random dominant sub-updates it is {format_percent(by_chance.mean())} [{_number(100 * low)}, "
        f"{_number(100 * high)}]."
    )
    return Judgement(here, verdict_of(covered < 0.05, bool(covered < by_chance.mean() / 2)))


def _groups(m: Measurements) -> Numbers:
    memories = frequent(m).memories
    rare = is_rare(m.token_counts, top_ids(m, memories)) if len(memories) else np.zeros(0, dtype=bool)
    depth = memories[:, 0] / max(m.sample.n_layers - 1, 1)
    return {"rare": depth[rare], "common": depth[~rare], "seed": m.seed}


def judge_groups(rare: np.ndarray, common: np.ndarray, seed: int) -> Judgement:
    """Depth of values for rare and for common tokens."""
    if min(len(rare), len(common)) < FEWEST_VALUES:
        here = f"{len(rare)} extreme values promote rare tokens and {len(common)} common ones: too few to compare."
        return Judgement(here, "cannot be told")
    lead = difference_of(rare, common, seed=seed)
    here = (
        f"{len(rare)} extreme values promote rare tokens, at {rare.mean():.0%} of the depth on average; {len(common)} "
        f"promote common ones, at {common.mean():.0%}, a difference of {_percent(lead)} of the depth."
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
        f"{_percent(extreme)} of their appearances have a prefix of at most {SHORT} tokens or a prediction of "
        f"probability {EASY} or more; of all examples {_percent(whole)} do."
    )
    return Judgement(here, verdict_of(above(extreme, 0.5), above(extreme, whole.high)))


# Section 6.


def _rule(m: Measurements) -> Numbers | None:
    if m.applications.early_exit is None:
        return None
    rows = {row["method"]: row for row in m.applications.early_exit.rows()}
    if "both" not in rows:
        return None
    names = ("accuracy", "accuracy_std", "saved_layers", "saved_layers_std")
    return {
        **{f"rule_{name}": rows["sub_updates"][name] for name in names},
        **{f"classifier_{name}": rows["both"][name] for name in names},
        "oracle": rows["oracle"]["saved_layers"],
        "n_layers": m.lm.n_layers,
    }


def judge_rule(
    rule_accuracy: float,
    rule_accuracy_std: float,
    rule_saved_layers: float,
    rule_saved_layers_std: float,
    classifier_accuracy: float,
    classifier_accuracy_std: float,
    classifier_saved_layers: float,
    classifier_saved_layers_std: float,
    oracle: float,
    n_layers: int,
) -> Judgement:
    """The sub-updates rule beside a trained classifier, in the spread of five splits."""
    here = (
        f"The rule gives {rule_accuracy:.1f} ± {rule_accuracy_std:.1f} % of the predictions and saves "
        f"{rule_saved_layers:.2f} ± {rule_saved_layers_std:.2f} of {n_layers} layers (at most {oracle:.2f}); the "
        f"classifier gives {classifier_accuracy:.1f} ± {classifier_accuracy_std:.1f} % and saves "
        f"{classifier_saved_layers:.2f} ± {classifier_saved_layers_std:.2f}."
    )
    spread = 2 * math.hypot(rule_accuracy_std, classifier_accuracy_std)
    layers = 2 * math.hypot(rule_saved_layers_std, classifier_saved_layers_std)
    accurate = rule_accuracy >= 90 and rule_accuracy >= classifier_accuracy - max(spread, 1.0)
    saves = rule_saved_layers >= 0.1 * n_layers and rule_saved_layers >= classifier_saved_layers - layers
    # An oracle that saves less than a tenth of the layers leaves no room to agree or to differ.
    return Judgement(here, verdict_of(None if oracle < 0.1 * n_layers else accurate and saves))


def _toxicity(m: Measurements) -> Numbers | None:
    if m.applications.toxicity is None:
        return None
    rows = {row["arm"]: row for row in m.applications.toxicity.rows()}

    def arm(name: str) -> Measured:
        row = rows[name]
        return Measured(row["toxicity"] / 100, row["toxicity_low"] / 100, row["toxicity_high"] / 100, 0)

    return {"plain": arm("plain"), "picked": arm("values picked by a scorer")}


def judge_toxicity(plain: Measured, picked: Measured) -> Judgement:
    """Toxic continuations with and without the values."""
    here = f"Ten values whose tokens score low change toxic continuations from {_percent(plain)} to {_percent(picked)}."
    lower = True if picked.high < plain.low else False if picked.value >= plain.value else None
    return Judgement(here, verdict_of(lower))


# Appendix A.


def _norm(m: Measurements) -> Numbers:
    names = ("values", "random", "value_with_random", "random_with_value")
    return {
        "has_norm": m.lm.structure.final_norm is not None,
        **{name: mean_of(m.overlaps[name].ravel(), seed=m.seed, share=True) for name in names},
    }


def judge_norm(
    has_norm: bool, values: Measured, random: Measured, value_with_random: Measured, random_with_value: Measured
) -> Judgement:
    """Overlap with and without the norm, beside the overlap with random vectors."""
    if not has_norm:
        return Judgement("The model has no final norm, so both readings are the same.", "cannot be told")
    here = (
        f"{_percent(values)} of the top tokens of a value are the same with and without the norm. A value and a random "
        f"vector share {_percent(value_with_random)} with the norm on the random vector and "
        f"{_percent(random_with_value)} with it on the value; random vectors keep {_percent(random)} of their own."
    )
    contrast = max(value_with_random.high, random_with_value.high)
    return Judgement(here, verdict_of(above(values, 0.5), contrast < 0.05))


def _contribution(m: Measurements) -> Numbers:
    sample = m.sample
    return {
        "layers": [mean_of(row, seed=m.seed, share=True) for row in sample.contribution],
        "whole": mean_of(sample.contribution.mean(axis=0), seed=m.seed, share=True),
        "even": DOMINANT / m.lm.d_mlp,
        "n_memories": m.lm.d_mlp,
    }


def judge_contribution(layers: list[Measured], even: float, n_memories: int, **_: Any) -> Judgement:
    """The contribution of the ten dominant sub-updates."""
    middle = sorted(layers, key=lambda x: x.value)[len(layers) // 2]
    here = (
        f"Ten of {n_memories:,} sub-updates ({format_percent(even)}) make up {_percent(middle)} of the sum in the "
        f"median layer, {_number(middle.value / even)} times an even share."
    )
    return Judgement(here, verdict_of(within(middle, 0.025, 0.1)))


def judge_large_contribution(layers: list[Measured], **_: Any) -> Judgement:
    """Layers in which the ten make up more than a tenth."""
    over = [n for n, x in enumerate(layers) if x.low > 0.1]
    open_ = [n for n, x in enumerate(layers) if x.low <= 0.1 <= x.high]
    which = f" ({', '.join(map(str, over))})" if over else ""
    here = (
        f"They make up more than 10 % in {len(over)} of {len(layers)} layers{which}; the most is "
        f"{_percent(max(layers, key=lambda x: x.value))}."
    )
    some = 0 < len(over) < len(layers)
    return Judgement(here, verdict_of(True if some else None if open_ and not over else False))


def _negative(m: Measurements) -> Numbers | None:
    if m.sample.coefficients.min() >= 0 and m.lm.feed_forward(0).activation == "relu":
        return None
    negative = (m.sample.coefficients < 0).mean(axis=-1)  # layer example
    return {
        "layers": [mean_of(row, seed=m.seed, share=True) for row in negative],
        "whole": mean_of(negative.mean(axis=0), seed=m.seed, share=True),
    }


def judge_negative(whole: Measured, layers: list[Measured]) -> Judgement:
    """Negative coefficients among the ten dominant sub-updates."""
    most = max(layers, key=lambda x: x.value)
    here = f"{_percent(whole)} of the ten dominant coefficients are negative, at most {_percent(most)} in a layer."
    return Judgement(here, verdict_of(above(whole, 0.001), below(whole, 0.5)))


CLAIMS: tuple[Claim[Measurements], ...] = (
    Claim(
        "values against random",
        "concepts",
        "A substantially higher portion of top tokens were associated with a concept in value vectors than in random "
        "ones.",
        "Sec. 4.1, Tab. 2",
        "share of the 30 top tokens in a concept, values over random vectors",
        "36.7 % against 16 % in GPT2, 55.1 % against 22.7 % in WikiLM: 2.3 and 2.4 times as many",
        "The ratio is above 1.5, midway between no difference and the paper's ratios on a logarithmic scale; bootstrap "
        "over vectors.",
        _coverage,
        judge_values_against_random,
    ),
    Claim(
        "updates against values",
        "concepts",
        "Without stop words, projections of whole updates have a considerably lower token coverage than those of "
        "sub-updates.",
        "Sec. 4.1, Tab. 2",
        "share of the 30 top tokens in a concept, updates over values",
        "11.8 % against 36.7 % in GPT2, 19.7 % against 55.1 % in WikiLM: 0.32 and 0.36 times as many",
        "The ratio is below 2/3, which is nearer to no difference than to the paper's ratios; bootstrap over values "
        "and over the prefixes of updates.",
        _coverage,
        judge_updates_against_values,
    ),
    Claim(
        "stop words in updates",
        "concepts",
        "For a large part of the tokens of updates the concept was stop words and punctuation.",
        "Sec. 4.1, Tab. 2",
        "share of top tokens that stop words add, updates less values",
        "34.2 points of updates in GPT2 and 19.7 in WikiLM, 0.3 and 0 points of values",
        "The difference is above 5 points, a quarter of the smaller published one; bootstrap over values and over the "
        "prefixes of updates.",
        _stop_words,
        judge_stop_words,
    ),
    Claim(
        "number of concepts",
        "concepts",
        "Value vectors hold more than one concept on average, random vectors about half a one.",
        "Sec. 4.1",
        "concepts per vector",
        "more than 1 in values, about 0.5 in random vectors (the paper's words)",
        "Values hold more than 1 and more than random vectors; bootstrap over vectors.",
        _number_of_concepts,
        judge_number_of_concepts,
    ),
    Claim(
        "coverage of every layer",
        "concepts",
        "In both models and across all layers, a substantial portion of the top tokens were associated with concepts.",
        "Sec. 4.2, Fig. 2",
        "share of the 30 top tokens of values in a concept, by layer",
        "40 to 70 % in WikiLM, 20 to 65 % in GPT2",
        "Every layer's share lies between 20 and 70 %, the range of both models; a layer whose interval lies outside "
        "disagrees.",
        _coverage_by_layer,
        judge_coverage_by_layer,
    ),
    Claim(
        "mostly semantic",
        "concepts",
        "Most of the concepts were classified as semantic.",
        "Sec. 4.2, Fig. 2",
        "share of top tokens of values in semantic concepts less that in other ones",
        "most of 36.7 % (GPT2: 24.9 %) and of 55.1 % (WikiLM)",
        "The difference is above 0 and semantic concepts hold more than 5 % of the tokens, a fifth of GPT2's 24.9 %, "
        "so that chance finds do not count.",
        _semantic,
        judge_mostly_semantic,
    ),
    Claim(
        "random vectors are not semantic",
        "concepts",
        "Hardly any tokens of random vectors were marked as semantic concepts.",
        "Sec. 4.1",
        "share of top tokens in semantic concepts, random vectors over values",
        "none in WikiLM; GPT2's share is not in the text at hand",
        "The ratio is below 1/2; the paper's is 0 in WikiLM. Bootstrap over vectors.",
        _semantic,
        judge_random_not_semantic,
    ),
    Claim(
        "last updates",
        "concepts",
        "There are very few concepts in the updates of the last two layers of WikiLM.",
        "Sec. 4.1",
        "share of top tokens in a concept, updates of the last two layers over earlier ones",
        "very few in the last two layers, 19.7 % over all layers (WikiLM)",
        "The ratio is below 1/2 and the share itself below 10 %, half of WikiLM's average; bootstrap over prefixes.",
        _last_updates,
        judge_last_updates,
    ),
    Claim(
        "maxima",
        "events",
        "Tokens promoted to the top receive higher maximum scores than tokens eliminated from the top.",
        "Sec. 5.1, Tab. 4",
        "mean over events of the largest of ten scores, saturations over eliminations",
        "8.5 in GPT2 and 1.2 in WikiLM for saturations (a third party's reading of Tab. 4)",
        f"The ratio is above 1.5 and the score itself above {AT_LEAST} (odds times 1.1): a score that leaves the odds "
        "as they are promotes nothing. Bootstrap over events.",
        _maxima,
        judge_maxima,
    ),
    Claim(
        "sides of saturations",
        "events",
        "For promoted tokens the maximum scores are substantially higher than the minimum scores.",
        "Sec. 5.1, Tab. 4",
        "size of the mean largest score over that of the mean smallest, saturations",
        "8.5 (GPT2) and 1.2 (WikiLM) for the maximum; the minima are not in the text at hand",
        f"The ratio is above 1.25 and the maximum above {AT_LEAST}; bootstrap over events.",
        lambda m: _spread(m, "saturation"),
        judge_saturation_sides,
    ),
    Claim(
        "sides of eliminations",
        "events",
        "For eliminated tokens maximum and minimum scores are similar in their magnitude.",
        "Sec. 5.1, Tab. 4",
        "size of the mean largest score over that of the mean smallest, eliminations",
        "similar (the numbers are not in the text at hand)",
        f"The ratio lies between 2/3 and 1.5 and the maximum is above {AT_LEAST}; bootstrap over events.",
        lambda m: _spread(m, "elimination"),
        judge_elimination_sides,
    ),
    Claim(
        "eliminated indirectly",
        "events",
        "Tokens eliminated from the top receive near-zero mean scores, suggesting that they are not eliminated "
        "directly: others rise.",
        "Sec. 5.1",
        "share of eliminations in which the update lowers the candidate's own logit",
        "near-zero mean scores by dominant sub-updates; no share is given",
        "The candidate's own logit falls in fewer than half of the eliminations: if it falls in most, the update "
        "pushes it down itself, whatever ten of its sub-updates score. Exact binomial interval over examples.",
        _candidate,
        judge_candidate,
    ),
    Claim(
        "random sub-updates",
        "events",
        "Scores by random sub-updates are dramatically lower in magnitude.",
        "Sec. 5.1, Tab. 4",
        "mean largest of ten scores, random over dominant sub-updates, in saturations",
        "dramatically lower than 8.5 (GPT2) and 1.2 (WikiLM)",
        f"The ratio is below 0.1, an order of magnitude, and the dominant score above {AT_LEAST}; bootstrap over "
        "events.",
        _by_random,
        judge_by_random,
    ),
    Claim(
        "settled early",
        "events",
        "Most predictions settle before the last layer, which is the most frequent single one.",
        "App. A.5, Tab. 9-10",
        "share of examples by saturation layer",
        "84.8 % before the last layer in WikiLM, 65.9 % in GPT2 medium (15.2 and 34.2 % in it)",
        "More than half settle before the last layer, and more in the last than in any other one; exact binomial "
        "interval, and a bootstrap over examples.",
        _settled,
        judge_settled,
    ),
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
        "sub-updates cover: any few sub-updates lie in few clusters.",
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
    Claim(
        "sub-updates rule",
        "early exit",
        "The sub-updates rule obtains a high accuracy while saving 20 % of the computation, on par with classifiers.",
        "Sec. 6.2, Tab. 6",
        "accuracy and saved layers over five splits",
        "94.1 ± 1.4 % and 3.2 ± 0.3 of 16 layers (WikiLM); classifiers 94.4 ± 6.4 % and 3.0 ± 0.4",
        "At least 90 % right, at least a tenth of the layers saved, and neither worse than the classifier by more than "
        "two standard deviations of the five splits. Where even an oracle saves less than a tenth, it cannot be told.",
        _rule,
        judge_rule,
    ),
    Claim(
        "less toxic",
        "toxicity",
        "Increasing ten values whose tokens score low reduces toxic continuations.",
        "Sec. 6.1, Tab. 5",
        "share of continuations scored toxic",
        "58.5 % to 52.7 % (API graded; 30.8 % with ten values picked by hand), gpt2-medium",
        "The interval with the values lies below the interval without; bootstrap over prompts.",
        _toxicity,
        judge_toxicity,
    ),
    Claim(
        "norm keeps concepts",
        "norm",
        "LN does not change the projection substantially, in contrast to random values.",
        "App. A.1, Fig. 4",
        "intersection over union of the 30 top tokens with and without the final norm",
        "a large overlap for values, hardly any with random values (the numbers are not in the text at hand)",
        "Above 1/2 for a value and itself, below 5 % for a value and a random vector, both ways. Without a final norm "
        "it cannot be told.",
        _norm,
        judge_norm,
    ),
    Claim(
        "contribution",
        "contribution",
        "The contribution of the ten dominant sub-updates is typically around 5 % of the total.",
        "App. A.3, Fig. 6",
        "share of the ten in the sum of |m| |v|, median layer",
        "about 5 %, of 0.24 % of the value vectors",
        "Between 2.5 and 10 %, a factor of two around the published share; bootstrap over examples.",
        _contribution,
        judge_contribution,
    ),
    Claim(
        "large contribution",
        "contribution",
        "In some layers the contribution of the ten dominant sub-updates reaches over 10 %.",
        "App. A.3, Fig. 6",
        "layers in which the share is above 10 %",
        "layers 8 to 16 of WikiLM, layer 1 of GPT2",
        "In at least one layer, but not in all, the interval lies above 10 %; bootstrap over examples.",
        _contribution,
        judge_large_contribution,
    ),
    Claim(
        "negative coefficients",
        "contribution",
        "Sub-updates with negative coefficients do in some cases appear among the ten dominant ones (GPT2).",
        "App. A.3",
        "share of negative coefficients among the ten",
        "some cases; no number",
        "Above 0.1 % (some) and below half (cases, not the rule); bootstrap over examples. ReLU has none and is not "
        "judged.",
        _negative,
        judge_negative,
    ),
)
"""Every finding of the report, in reading order."""

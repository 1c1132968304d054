"""The claims of section 5.1: how sub-updates score tokens in saturations and eliminations."""

from __future__ import annotations

import numpy as np

from unembed.document.intervals import Measured, mean_of, paired_difference, ratio_of, share_of
from unembed.document.numbers import format_interval, percent, points
from unembed.memories.event_scores import Kind, counted_events, event_scores, saturation_shares
from unembed.reports.claims import Claim, Judgement, Numbers, above, below, verdict_of, within
from unembed.reports.geva2022.findings.thresholds import AT_LEAST, FEWEST
from unembed.reports.geva2022.measurements import Measurements


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
    """The strongest sub-update of a saturation compared with that of an elimination."""
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
        f"The dominant sub-updates score the eliminated candidate {format_interval(mean)} on average; the whole "
        "update changes its own logit, without the final norm, "
        f"by {format_interval(change)}, downwards in {percent(falls)} of the eliminations."
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
    """Random sub-updates compared with dominant ones."""
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
        f"{percent(before)} of the predictions settle before the last layer and {percent(last)} in it: "
        f"{points(lead)} compared with the most frequent of the other layers."
    )
    return Judgement(here, verdict_of(above(before, 0.5), above(lead, 0)))


def explain_candidate(m: Measurements) -> str:
    """How much of the fall is in the ten dominant sub-updates."""
    layers, examples = counted_events(m.sample, "elimination")
    change = float(m.sample.candidate_change[layers, examples].mean())
    ten = float(_scores(m, "elimination").sum(axis=1).mean())
    return (
        f"The ten dominant sub-updates together change the candidate's logit by {ten:+.2f} on average, the whole "
        f"update by {change:+.2f}: the rest is done by its other sub-updates and its bias."
        if abs(ten) < abs(change) / 2
        else f"The ten dominant sub-updates themselves change the candidate's logit by {ten:+.2f} on average, of "
        f"{change:+.2f} in all."
    )


CLAIMS: tuple[Claim[Measurements], ...] = (
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
        explain_candidate,
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
)

"""The claims of section 5.2, residual connections refine predictions, to the compositions of the last layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from unembed.document.intervals import (
    Measured,
    mean_of,
    paired_difference,
    share_of,
)
from unembed.document.numbers import format_percent, percent, points
from unembed.reports.claims import Claim, Judgement, Numbers, above, verdict_of, within
from unembed.reports.geva2021.formatting import first_upper
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.sections.refinement import breakdown, judge_compositions

FEWEST_PAIRS = 20
"""Compositions below which their kinds are not judged."""


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
    here = (
        f"In {percent(decided)} of the examples the residual that enters FFN {bottom} has the final prediction first."
    )
    return Judgement(here, verdict_of(within(decided, 0.25, 0.42)))


def judge_growth(
    steep: Measured | None, flat: Measured | None, growth: Measured | None, upper: int, **_: Any
) -> Judgement:
    """Growth per layer above and below the upper layers' start."""
    if steep is None or flat is None or growth is None:
        return Judgement("The model has too few layers to compare growth.", "inconclusive")
    here = (
        "The share of examples whose residual has the final prediction first grows by "
        f"{points(steep)} a layer from layer {upper} on and by {points(flat)} below it."
    )
    return Judgement(here, verdict_of(above(growth, 0), above(steep, 0)))


def judge_rise(steps: list[Measured], rise: Measured, **_: Any) -> Judgement:
    """The residual's probability of the prediction, layer by layer."""
    falls = sum(step.high < 0 for step in steps)
    here = (
        f"The residual's probability of the prediction rises by {points(rise)} on average from the first layer to the "
        f"last, and falls from one layer to the next in {falls} of {len(steps)} steps."
    )
    return Judgement(here, verdict_of(falls == 0, above(rise, 0.05)))


def judge_alone(alone: list[Measured], **_: Any) -> Judgement:
    """Outputs that follow the residual alone."""
    low, high = min(alone, key=lambda x: x.value), max(alone, key=lambda x: x.value)
    here = f"The output follows the residual alone in {percent(low)} to {percent(high)} of the examples, by layer."
    return Judgement(here, verdict_of(*(within(x, 0.55, 0.9) for x in alone)))


def judge_composed(composed: Measured, **_: Any) -> Judgement:
    """Changed outputs that neither part has first."""
    here = f"{percent(composed)} of the changed outputs are neither the residual's nor the update's token."
    return Judgement(here, verdict_of(above(composed, 0.5)))


def _compositions(m: Measurements) -> Numbers:
    found = judge_compositions(m)
    return {
        "related": share_of(int(found.related.sum()), int(found.known.sum())),
        "n_pairs": len(found.known),
    }


def judge_related(related: Measured, n_pairs: int) -> Judgement:
    """Related tokens among the compositions of the last layer."""
    here = (
        f"Of {n_pairs} changes of the last layer from the residual's token to a third one {related.n} can be judged by "
        f"rule; in {percent(related)} of these the two tokens are related."
    )
    if related.n < FEWEST_PAIRS:
        return Judgement(here, "inconclusive")
    return Judgement(here, verdict_of(within(related, 0.19, 0.49)))


def explain_growth(m: Measurements) -> str | None:
    """How much is left to grow where the upper layers begin, where that is too little to pass the test."""
    upper, n_layers = first_upper(m.triggers.n_layers), m.triggers.n_layers
    flat = _refinement(m)["flat"]
    match = float((m.examples["residual"][upper] == m.examples["output"][-1]).mean())
    left = (1 - match) / max(n_layers - upper, 1)
    if flat is None or left >= 2 * flat.value:
        return None
    return (
        f"With {n_layers} layers instead of 16, {format_percent(match)} of the predictions are decided where layer "
        f"{upper} begins, so that the share can grow by {100 * left:.1f} points a layer at most, less than twice the "
        "growth below."
    )


def explain_alone(m: Measurements) -> str:
    """What the least layer's output is instead, and how many layers share the work."""
    e, n_layers = m.examples, m.triggers.n_layers
    kinds = {name: rows.mean(axis=1) for name, rows in breakdown(e["residual"], e["update"], e["output"]).items()}
    layer = int(np.argmin(kinds["residual"]))
    changed = float(sum(kinds[name][layer] for name in ("composition", "joint", "ffn")))
    return (
        f"In layer {layer}, the least, both agree in {format_percent(kinds['agreement'][layer])} of the examples, and "
        f"in {format_percent(changed)} the FFN changes the first token: {n_layers} FFNs do what 16 do in the paper."
    )


CLAIMS: tuple[Claim[Measurements], ...] = (
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
        explain_growth,
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
        explain_alone,
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
        "can be judged are no evidence. Exact binomial interval over examples.",
        _compositions,
        judge_related,
    ),
)

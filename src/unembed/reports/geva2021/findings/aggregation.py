"""The claims of section 5.1, aggregation of memories: how many are active, and whether a layer agrees with any."""

from __future__ import annotations

from typing import Any

import numpy as np

from unembed.document.intervals import (
    Measured,
    mean_of,
    share_of,
)
from unembed.document.numbers import format_percent, percent
from unembed.reports.claims import Claim, Judgement, Numbers, above, below, verdict_of, within
from unembed.reports.geva2021.examples import CARRIED
from unembed.reports.geva2021.formatting import stop_words
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.published import D_VOCAB
from unembed.reports.geva2021.sections.aggregation import SHORT

FEWEST_CASES = 20
"""Agreeing cases below which they are not judged."""


def _active(m: Measurements) -> Numbers:
    return {"layers": [mean_of(row, seed=m.seed, share=True) for row in m.examples["above_zero"]]}


def judge_active(layers: list[Measured]) -> Judgement:
    """Active memories in every layer."""
    low, high = min(layers, key=lambda x: x.value), max(layers, key=lambda x: x.value)
    here = f"Between {percent(low)} and {percent(high)} of the memories have a coefficient above 0, by layer."
    return Judgement(here, verdict_of(*(within(x, 0.1, 0.5) for x in layers)))


def judge_active_drop(layers: list[Measured]) -> Judgement:
    """Where the fewest memories are active, and how few."""
    least = min(range(len(layers)), key=lambda n: layers[n].value)
    deepest = layers[least]
    here = (
        f"The fewest memories are active in layer {least} of {len(layers)} ({percent(deepest)}); {percent(layers[0])} "
        f"are in the first and {percent(layers[-1])} in the last."
    )
    if len(layers) < 4:
        return Judgement(here, "inconclusive")
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
        f"In at least {percent(active[least])} of the examples (layer {least}) the layer's prediction differs from "
        f"every active memory's, in at least {percent(min(all_memories, key=lambda x: x.value))} from every memory's."
    )
    return Judgement(here, verdict_of(*(above(x, 0.68) for x in active)))


def _agreeing(m: Measurements) -> Numbers | None:
    e = m.examples
    layers, which = np.nonzero(e["any_active"])
    if len(which) < FEWEST_CASES:
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
        f"Where a memory agrees with its layer's prediction, this is a stop word in {percent(stops)} of the cases, "
        f"against {percent(all_stops)} of all layers' predictions."
    )
    return Judgement(here, verdict_of(within(stops, 0.45, 0.75), above(stops, all_stops.high)))


def judge_shorts(shorts: Measured, all_shorts: Measured, **_: Any) -> Judgement:
    """Short prefixes among agreeing cases and among all examples."""
    here = (
        f"Where a memory agrees with its layer's prediction, the prefix has fewer than {SHORT} tokens in "
        f"{percent(shorts)} of the cases, against {percent(all_shorts)} of all examples."
    )
    return Judgement(here, verdict_of(within(shorts, 0.28, 0.58), above(shorts, all_shorts.high)))


def explain_active(m: Measurements) -> str | None:
    """An activation that is not ReLU: how many memories carry what the layer writes."""
    site = m.lm.feed_forward(0)
    if site.activation == "relu" and not site.is_gated:
        return None
    carrying = [float(row.mean()) for row in m.examples["carrying"]]
    kind = f"gated, with {site.activation}" if site.is_gated else site.activation
    return (
        f"The paper's model has ReLU, whose coefficients are 0 or positive; this one's layers are {kind}, with signed "
        f"coefficients, and {format_percent(min(carrying))} to {format_percent(max(carrying))} of the memories carry "
        f"{CARRIED:.0%} of what a layer writes."
    )


def explain_zero(m: Measurements) -> str:
    """How likely a random token is some memory's first, in a small vocabulary."""
    a = m.agreement
    share = [len(np.unique(a.top[a.layer(n)])) / m.lm.d_vocab for n in range(m.triggers.n_layers)]
    return (
        f"A layer has {int(m.triggers.bounds[1]):,} memories here for {m.lm.d_vocab:,} tokens, in the paper 4,096 "
        f"for {D_VOCAB:,}: {format_percent(min(share))} to {format_percent(max(share))} of the vocabulary is the "
        "first token of some value of a layer."
    )


def explain_agreeing(m: Measurements) -> str | None:
    """Agreeing cases that are most of all cases."""
    agreeing = float(m.examples["any_active"].mean())
    if agreeing <= 1 / 3:
        return None
    return (
        f"In {format_percent(agreeing)} of the cases some memory agrees, in the paper in at most a third: agreeing "
        "cases are not a small special set here."
    )


CLAIMS: tuple[Claim[Measurements], ...] = (
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
        explain_active,
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
        explain_active,
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
        explain_zero,
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
        explain_agreeing,
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
        explain_agreeing,
    ),
)

"""Section 5.1 and appendix A.5: saturation and elimination events, and sub-updates' scores in them (Tab. 4, 9, 10).

In a saturation, the final prediction becomes the top token and stays on top in all later layers. In an elimination, an
FFN lowers the score of the token that was on top before the FFN.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unembed.document.exhibits import by_layer, exhibit, plain_mean
from unembed.document.intervals import Measured, mean_of, paired_difference, ratio_of, share_of
from unembed.document.model import Exhibit, Section
from unembed.document.numbers import format_interval, percent, points
from unembed.memories.event_sample import DOMINANT
from unembed.memories.event_scores import (
    Kind,
    counted_events,
    event_scores,
    of_events,
    saturation_shares,
    scores_in_logits,
)
from unembed.reports.geva2022 import published
from unembed.reports.geva2022.measurements import Measurements
from unembed.reports.geva2022.published import AT_LEAST, FEWEST
from unembed.reports.published import PRINTED, SUMMARY, Origin
from unembed.reports.quantities import Numbers, Part, Quantity, above, below, judged, once, within
from unembed.results import format_number, format_percent, format_signed

KINDS: tuple[Kind, ...] = ("saturation", "elimination")
SHOWN = 40
_ENDS = ("max", "mean", "min")
_SCORES = {
    "raw": "e_w . m_i v_i, basis raw",
    "frozen": "e_w . m_i v_i through the final norm, basis frozen",
    "adaptive": "log p(w | x + m_i v_i) - log p(w | x) in nats, x before the FFN: linear scores of an adaptive softmax "
    "compare only within a band of words",
}


def _scores(m: Measurements, kind: Kind, random: bool = False) -> np.ndarray:
    return event_scores(m.sample, kind, basis=m.options.basis, random=random)


def _logits(m: Measurements, kind: Kind, random: bool = False) -> np.ndarray:
    """Return the scores in logits, as the logit lens reads them from the stream before the FFN."""
    return of_events(m.sample, kind, scores_in_logits(m.sample, basis=m.options.basis, random=random))


def _strongest(m: Measurements, kind: Kind) -> Measured:
    """Return the mean, over events, of the largest of an event's ten scores; scores are in logits."""
    return mean_of(_logits(m, kind).max(axis=1), seed=m.seed)


def _enough(m: Measurements, *kinds: Kind) -> bool:
    return all(len(_scores(m, kind)) >= FEWEST for kind in kinds)


@once
def table_4(m: Measurements) -> dict[tuple[Kind, str], Numbers]:
    """Return the largest, mean and smallest score among ten sub-updates, averaged over events.

    The keys are (kind of event, "dominant" or "random"): the ten sub-updates are the largest of the layer, or random.
    `medians` are the medians over events of the largest, mean and smallest score.
    """

    def of(scores: np.ndarray) -> Numbers:
        ends = {name: getattr(scores, name)(axis=1) if len(scores) else np.zeros(0) for name in _ENDS}
        found = {name: mean_of(values, seed=m.seed) for name, values in ends.items()}
        return Numbers(**found, medians=[float(np.median(v)) if len(v) else None for v in ends.values()])

    return {(kind, by): of(_scores(m, kind, by == "random")) for kind in KINDS for by in ("dominant", "random")}


@once
def maxima(m: Measurements) -> Numbers | None:
    """Compare the largest score in saturations with that in eliminations; None with too few events."""
    if not _enough(m, *KINDS):
        return None
    largest, in_logits = ([scores(m, kind).max(axis=1) for kind in KINDS] for scores in (_scores, _logits))
    return Numbers(
        **{kind: table_4(m)[kind, "dominant"].max for kind in KINDS},
        ratio=ratio_of(*largest, seed=m.seed),
        in_logits=_strongest(m, "saturation"),
        eliminated_in_logits=_strongest(m, "elimination"),
        ratio_in_logits=ratio_of(*in_logits, seed=m.seed),
    )


def _spread(m: Measurements, kind: Kind) -> Numbers | None:
    """Return the mean largest and the mean smallest score for one kind of event; None with too few events."""
    if not _enough(m, kind):
        return None
    found = table_4(m)[kind, "dominant"]
    ratio = _ratio_of_sizes(_scores(m, kind), m.seed)
    return Numbers(most=found.max, least=found.min, ratio=ratio, in_logits=_strongest(m, kind))


def _ratio_of_sizes(scores: np.ndarray, seed: int) -> Measured:
    """Return |mean of maxima| / |mean of minima| over events (rows), with a bootstrap interval."""
    most, least = scores.max(axis=1), scores.min(axis=1)
    random = np.random.default_rng(seed)
    rows = random.integers(0, len(scores), (1000, len(scores)))
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = np.abs(most[rows].mean(axis=1)) / np.abs(least[rows].mean(axis=1))
        value = abs(most.mean()) / abs(least.mean())
    low, high = np.quantile(drawn[~np.isnan(drawn)], (0.025, 0.975)) if np.isfinite(drawn).any() else (np.nan, np.nan)
    return Measured(float(value), float(low), float(high), len(scores))


def _sides(n: Numbers) -> str:
    return (
        f"The largest of the ten scores is {format_interval(n.most)} on average, the smallest "
        f"{format_interval(n.least)}, a ratio of sizes of {format_interval(n.ratio)}. {_in_logits(n)}"
    )


def _in_logits(n: Numbers) -> str:
    return f"In logits of the stream, the largest is {format_interval(n.in_logits)}."


@once
def candidate(m: Measurements) -> Numbers | None:
    """Measure how far the eliminated token's own logit falls; None with too few events."""
    if not _enough(m, "elimination"):
        return None
    change = m.sample.candidate_change[counted_events(m.sample, "elimination")]
    return Numbers(
        mean=table_4(m)["elimination", "dominant"].mean,
        falls=share_of(int((change < 0).sum()), len(change)),
        change=mean_of(change, seed=m.seed),
        median=float(np.median(change)),
    )


@once
def by_random(m: Measurements) -> Numbers | None:
    """Compare the largest score among ten random sub-updates with that among the ten dominant ones, in saturations."""
    if not _enough(m, "saturation"):
        return None
    dominant, random = (_scores(m, "saturation", by).max(axis=1) for by in (False, True))
    found = table_4(m)
    return Numbers(
        dominant=found["saturation", "dominant"].max,
        random=found["saturation", "random"].max,
        ratio=ratio_of(random, dominant, seed=m.seed),
        in_logits=_strongest(m, "saturation"),
    )


@once
def settled(m: Measurements) -> Numbers | None:
    """Measure the shares of saturations in the last layer and before it.

    Also measure how many more saturations the last layer has than the layer with the next most.
    """
    if m.sample.n_layers < 3:
        return None
    last = m.sample.saturation == m.sample.n_layers - 1
    runner_up = m.sample.saturation == int(np.argmax(saturation_shares(m.sample)[:-1]))
    return Numbers(
        before=share_of(int((~last).sum()), len(last)),
        last=share_of(int(last.sum()), len(last)),
        lead=paired_difference(last, runner_up, seed=m.seed),
    )


def explain_maxima(m: Measurements) -> str | None:
    """State which layer has most eliminations, and the median length (norm) of the residual stream there.

    None if the model has no final norm.
    """
    if m.lm.structure.final_norm is None or m.options.basis == "adaptive":
        return None
    layers, lengths = counted_events(m.sample, "elimination")[0], np.median(m.sample.stream_length, axis=1)
    most = int(np.bincount(layers).argmax())
    return (
        f"{format_percent(float((layers == most).mean()))} of the eliminations are in layer {most}, where the stream's "
        f"median length is {format_number(float(lengths[most]))}; by layer it is {format_number(float(lengths.min()))} "
        f"to {format_number(float(lengths.max()))}, and the norm divides by it."
    )


def explain_candidate(m: Measurements) -> str:
    """State how much of the fall of the eliminated token comes from the ten largest sub-updates."""
    change = float(m.sample.candidate_change[counted_events(m.sample, "elimination")].mean())
    ten = float(_scores(m, "elimination").sum(axis=1).mean())
    return (
        f"The ten dominant sub-updates together score the candidate {format_signed(ten)} on average, the whole update "
        f"{format_signed(change)}: the rest is done by its other sub-updates and its bias."
        if abs(ten) < abs(change) / 2
        else f"The ten dominant sub-updates themselves score the candidate {format_signed(ten)} on average, of "
        f"{format_signed(change)} in all."
    )


def explain_settled(m: Measurements) -> str:
    """State which layer before the last has the most saturations, and the share of these that its FFN causes."""
    layer = int(np.argmax(saturation_shares(m.sample)[:-1]))
    here = m.sample.saturation == layer
    return (
        f"In layer {layer} of {m.sample.n_layers}, the most frequent below the last, {format_percent(here.mean())} "
        f"settle; in {format_percent(plain_mean(m.sample.by_ffn()[here]))} of these the FFN makes the prediction first."
    )


QUANTITIES: tuple[Quantity[Measurements], ...] = (
    Quantity(
        "maxima",
        "Tokens promoted to the top receive higher maximum scores than tokens eliminated from the top.",
        where="Sec. 5.1, Tab. 4",
        what="mean over events of the largest of ten scores, saturations over eliminations",
        published="8.5 in GPT2 and 1.2 in WikiLM for saturations (a third party's reading of Tab. 4)",
        test=f"The ratio is above 1.5, and above 1 in logits of the stream: events lie in layers whose streams differ "
        f"in length. The score is above {AT_LEAST} of these logits: one that changes no odds promotes nothing. "
        "Bootstrap over events.",
        measure=maxima,
        judge=lambda n: judged(
            f"The strongest sub-update scores the promoted token {format_interval(n.saturation)} and the eliminated "
            f"one {format_interval(n.elimination)}, a ratio of {format_interval(n.ratio)}. In logits of the stream "
            f"{format_interval(n.in_logits)} and {format_interval(n.eliminated_in_logits)}, a ratio of "
            f"{format_interval(n.ratio_in_logits)}.",
            above(n.in_logits, AT_LEAST),
            above(n.ratio, 1.5),
            above(n.ratio_in_logits, 1),
        ),
        explain=explain_maxima,
        origins=(
            Origin("saturations, eliminations", "1,579, 1,996 (GPT2); 1,184, 1,909 (WikiLM)", PRINTED, "Sec. 5.1"),
            Origin("largest score of a saturation", "8.5 (GPT2), 1.2 (WikiLM)", SUMMARY, "Tab. 4"),
        ),
    ),
    Quantity(
        "sides of saturations",
        "For promoted tokens the maximum scores are substantially higher than the minimum scores.",
        where="Sec. 5.1, Tab. 4",
        what="size of the mean largest score over that of the mean smallest, saturations",
        published="8.5 (GPT2) and 1.2 (WikiLM) for the maximum; the minima are not in the text at hand",
        test=f"The ratio is above 1.25, and the maximum is above {AT_LEAST} logits of the stream; bootstrap over "
        "events.",
        measure=lambda m: _spread(m, "saturation"),
        judge=lambda n: judged(_sides(n), above(n.in_logits, AT_LEAST), above(n.ratio, 1.25)),
    ),
    Quantity(
        "sides of eliminations",
        "For eliminated tokens maximum and minimum scores are similar in their magnitude.",
        where="Sec. 5.1, Tab. 4",
        what="size of the mean largest score over that of the mean smallest, eliminations",
        published="similar (the numbers are not in the text at hand)",
        test=f"The ratio lies between 2/3 and 1.5, and the maximum is above {AT_LEAST} logits of the stream; bootstrap "
        "over events.",
        measure=lambda m: _spread(m, "elimination"),
        judge=lambda n: judged(_sides(n), above(n.in_logits, AT_LEAST), within(n.ratio, 2 / 3, 1.5)),
        explain=explain_candidate,
    ),
    Quantity(
        "eliminated indirectly",
        "Tokens eliminated from the top receive near-zero mean scores, suggesting that they are not eliminated "
        "directly: others rise.",
        where="Sec. 5.1",
        what="share of eliminations in which the whole update's score for the candidate is below 0",
        published="near-zero mean scores by dominant sub-updates; no share is given",
        test="The score is below 0 in fewer than half of the eliminations: if it is in most, the update pushes the "
        "candidate down itself, whatever ten of its sub-updates score. Exact binomial interval over examples.",
        measure=candidate,
        judge=lambda n: judged(
            f"The dominant sub-updates score the eliminated candidate {format_interval(n.mean)} on average; the whole "
            f"update scores it {format_interval(n.change)} (median {format_number(n.median)}), below 0 in "
            f"{percent(n.falls)} of the eliminations.",
            below(n.falls, 0.5),
        ),
        explain=explain_candidate,
    ),
    Quantity(
        "random sub-updates",
        "Scores by random sub-updates are dramatically lower in magnitude.",
        where="Sec. 5.1, Tab. 4",
        what="mean largest of ten scores, random over dominant sub-updates, in saturations",
        published="dramatically lower than 8.5 (GPT2) and 1.2 (WikiLM)",
        test=f"The ratio is below 0.1, an order of magnitude, and the dominant score is above {AT_LEAST} logits of the "
        "stream; bootstrap over events.",
        measure=by_random,
        judge=lambda n: judged(
            f"The largest score by ten random sub-updates is {format_interval(n.random)}, by the ten dominant ones "
            f"{format_interval(n.dominant)}. {_in_logits(n)}",
            above(n.in_logits, AT_LEAST),
            below(n.ratio, 0.1),
        ),
    ),
    Quantity(
        "settled early",
        "Most predictions settle before the last layer, which is the most frequent single one.",
        where="App. A.5, Tab. 9-10",
        what="share of examples by saturation layer",
        published="84.8 % before the last layer in WikiLM, 65.9 % in GPT2 medium (15.2 and 34.2 % in it)",
        test="More than half settle before the last layer, and more in the last than in any other one; exact binomial "
        "interval, and a bootstrap over examples.",
        measure=settled,
        judge=lambda n: judged(
            f"{percent(n.before)} of the predictions settle before the last layer and {percent(n.last)} in it: "
            f"{points(n.lead)} compared with the most frequent of the other layers.",
            above(n.before, 0.5),
            above(n.lead, 0),
        ),
        explain=explain_settled,
        origins=(Origin("saturation by layer", "24 and 16 percentages", PRINTED, "Tab. 9, 10"),),
    ),
)


def section(m: Measurements) -> Section:
    """Show saturations and eliminations with the scores in them, and in which layers predictions saturate."""
    wikilm, gpt2 = ([share / 100 for share in published.SATURATION[model]] for model in ("wikilm", "gpt2"))
    as_published = {"layer": range(len(gpt2)), "wikilm": wikilm + [None] * (len(gpt2) - len(wikilm)), "gpt2": gpt2}
    title, note = "Saturation by layer as published", "Tab. 9-10, layers from 0."
    drawn, series = "Where predictions settle", {"share": "all", "by_ffn": "made by the FFN"}
    lines = () if published.for_model(m.sample.n_layers) else published.saturation_lines()
    return Section(
        "Saturation and elimination (Sec. 5.1)",
        (
            "An example is a random prefix of a random sentence; the prediction is the most likely token after it. A "
            "saturation is the first layer from which on the prediction is the top token after every FFN; the FFN made "
            "it if the prediction was not the top token before. An elimination is the FFN update that lowers the rank "
            "of its own top candidate most. Both are found by the ranks of all tokens in the model's own readout.",
            "A score is that of the event's token by one of the 10 dominant sub-updates "
            f"({_SCORES[m.options.basis]}). The table has the maximum, mean and minimum of the ten, averaged over "
            "events. As in the paper, saturations count if the FFN made them before the last layer. The other numbers "
            "of the paper's Tab. 4 could not be confirmed and are left out.",
            *about_units(m),
            *_fewer_than_ten(m),
            published.CONTRADICTION,
        ),
        (
            _counts(m),
            _score_table(m),
            _saturation_table(m),
            exhibit(
                "saturation_published", title, as_published, m.provenance, note, percent=("wikilm", "gpt2"), folded=True
            ),
            _event_table(m),
        ),
        (by_layer("saturation", drawn, "saturation_by_layer", series, "share of examples", "bar", references=lines),),
    )


def about_units(m: Measurements) -> tuple[str, ...]:
    """Return a paragraph on the unit of raw scores; empty if the model has no final norm."""
    if m.lm.structure.final_norm is None or m.options.basis == "adaptive":
        return ()
    lengths = np.median(m.sample.stream_length, axis=1)
    return (
        "The model has a final norm, which divides by the length of the stream. A raw score is therefore not a change "
        f"of a logit: it grows with the stream. The stream's median length is {format_number(float(lengths.min()))} in "
        f"layer {int(lengths.argmin())} and {format_number(float(lengths.max()))} in layer {int(lengths.argmax())}. "
        "“In logits of the stream” means that the final norm is applied to the sub-update, with the scale that it has "
        "for the stream before the FFN.",
    )


def _fewer_than_ten(m: Measurements) -> tuple[str, ...]:
    """Return a note on FFN updates with fewer than ten active memories (possible with ReLU); empty without any."""
    few = (m.sample.coefficients != 0).sum(axis=-1) < DOMINANT  # (layer, example)
    if not few.any():
        return ()
    layers = ", ".join(f"{n} ({format_percent(row.mean(), 1)})" for n, row in enumerate(few) if row.any())
    return (
        f"{int(few.sum()):,} of the {few.size:,} updates, in {int(few.any(axis=0).sum()):,} of the {few.shape[1]:,} "
        f"examples, have fewer than {DOMINANT} active memories; the missing ones have the score 0. By layer: {layers}.",
    )


def _counts(m: Measurements) -> Exhibit:
    sample = m.sample
    saturations, eliminations = (len(counted_events(sample, kind)[0]) for kind in KINDS)
    counts = {
        "saturations made by an FFN": (int(sample.by_ffn().sum()), {}),
        "saturations made by an FFN before the last layer": (saturations, published.EVENTS["saturation"]),
        "eliminations": (eliminations, published.EVENTS["elimination"]),
    }
    cells = {
        "event_text": list(counts),
        "share": [share_of(count, len(sample)) for count, _ in counts.values()],
        **{
            f"published_{name}": [known[model] / published.EXAMPLES if known else None for _, known in counts.values()]
            for name, model in (("gpt2_medium", "gpt2"), ("wikilm", "wikilm"))
        },
    }
    title, note = "Events, as shares of the examples", f"Published: of {published.EXAMPLES:,} examples."
    shares = ("share", "published_gpt2_medium", "published_wikilm")
    return exhibit("event_counts", title, cells, m.provenance, note, percent=shares)


def _score_table(m: Measurements) -> Exhibit:
    maximum = {"raw": published.SATURATION_MAX["gpt2"], "adaptive": published.SATURATION_MAX["wikilm"]}
    found = table_4(m)
    largest = {row: numbers.max for row, numbers in found.items()}
    known = "saturation", "dominant"
    largest[known] = replace(largest[known], published=maximum.get(m.options.basis))
    cells = {
        "event": [kind for kind, _ in found],
        "sub_updates": [by for _, by in found],
        "max": list(largest.values()),
        **{name: [getattr(numbers, name) for numbers in found.values()] for name in ("mean", "min")},
        **{f"median_{name}": [numbers.medians[at] for numbers in found.values()] for at, name in enumerate(_ENDS)},
    }
    note = "max, mean, min: averaged over events; median_max and so on: their medians over events."
    return exhibit("tab4", "Scores of the reference token (Tab. 4)", cells, m.provenance, note)


def _saturation_table(m: Measurements) -> Exhibit:
    sample = m.sample
    n, matched = len(sample), published.for_model(sample.n_layers)
    known = [share / 100 for share in published.SATURATION[matched]] if matched else [None] * sample.n_layers
    by_ffn = np.bincount(sample.saturation[sample.by_ffn()], minlength=sample.n_layers)
    eliminations = np.bincount(counted_events(sample, "elimination")[0], minlength=sample.n_layers)
    shares = [share_of(round(share * n), n) for share in saturation_shares(sample)]
    cells = {
        "layer": range(sample.n_layers),
        "share": [replace(share, published=p) for share, p in zip(shares, known, strict=True)],
        "by_ffn": [share_of(int(count), n) for count in by_ffn],
        "eliminations": [share_of(int(count), n) for count in eliminations],
    }
    title = "Saturation by layer (Tab. 9-10), and eliminations"
    note = "Published where the depth is WikiLM's (16) or GPT2 medium's (24)."
    shown = ("share", "by_ffn", "eliminations")
    return exhibit("saturation_by_layer", title, cells, m.provenance, note, percent=shown)


def _event_table(m: Measurements) -> Exhibit:
    """List some events of each kind that an FFN causes, largest change of rank first, with the prefix of each."""
    lm, sample, by_number = m.lm, m.sample, {s.number: s for s in m.examples}
    chosen = []
    for kind in KINDS:
        of_kind = [(i, e) for i, e in sample.events() if e.kind == kind and e.cause == "ffn"]
        of_kind.sort(key=lambda pair: -abs(pair[1].rank_after - pair[1].rank_before))
        chosen += of_kind[:SHOWN]
    cells = {
        "event": [e.kind for _, e in chosen],
        "layer": [e.layer for _, e in chosen],
        "token": lm.token_strings([e.token for _, e in chosen]),
        "rank_before": [e.rank_before for _, e in chosen],
        "rank_after": [e.rank_after for _, e in chosen],
        "position": [e.position for _, e in chosen],
        "prefix_text": [lm.decode(by_number[int(sample.segment[i])].tokens) for i, _ in chosen],
        "prediction_token": lm.token_strings([int(sample.final[i]) for i, _ in chosen]),
        "segment": [int(sample.segment[i]) for i, _ in chosen],
    }
    note = "Open one with `unembed trace` on its prefix."
    return exhibit("events", "Examples of events", cells, m.provenance, note, folded=True)


PARTS = (Part(section, QUANTITIES),)

"""Section 5.2: scores of the top candidate by layer (Fig. 3), and sub-updates whose scores are extreme."""

from __future__ import annotations

import numpy as np

from unembed.document.exhibits import by_layer, exhibit, means
from unembed.document.intervals import Measured, mean_of, ratio_of
from unembed.document.model import Exhibit, Reference, Section
from unembed.document.numbers import format_interval
from unembed.memories.event_sample import TOKENS
from unembed.memories.event_scores import candidate_scores, scores_in_logits
from unembed.reports.geva2022 import published
from unembed.reports.geva2022.measurements import Measurements
from unembed.reports.geva2022.parts import extremes
from unembed.reports.geva2022.published import AT_LEAST
from unembed.reports.quantities import Judgement, Numbers, Part, Quantity, above, below, judged, least_of, once
from unembed.results import format_number, format_percent


@once
def figure_3(m: Measurements) -> Numbers:
    """Return the scores that the ten largest sub-updates give to the top token, by layer and example.

    The scores are in the paper's unit; fields whose names end in "in_logits" are in units of logits of the stream
    before the FFN.
    """
    scores = candidate_scores(m.sample, basis=m.options.basis)  # (layer, example, 10)
    maxima, minima = scores.max(axis=-1), scores.min(axis=-1)
    logits = scores_in_logits(m.sample, basis=m.options.basis)[..., TOKENS.index("candidate")]
    return Numbers(
        means=means(scores.mean(axis=-1), m.seed, share=False),
        maxima=maxima,
        minima=minima,
        maxima_in_logits=logits.max(axis=-1),
        minima_in_logits=logits.min(axis=-1),
        seed=m.seed,
    )


def _of_deep_models(m: Measurements) -> Numbers | None:
    return figure_3(m) if m.sample.n_layers >= 4 else None


def _last_layers(n_layers: int) -> int:
    """Return the number of last layers to judge separately: a seventh of all.

    In the paper, these are 2 of 24 layers of GPT2 and 3 of 16 layers of WikiLM.
    """
    return max(1, round(n_layers / 7))


def _top(n_layers: int) -> str:
    """Return the last layers that are judged separately, in words."""
    last = _last_layers(n_layers)
    return "the last layer" if last == 1 else f"the last {last} layers"


def judge_means(n: Numbers) -> Judgement:
    """Judge whether mean scores are positive in most layers below the last ones, and negative nowhere."""
    earlier: list[Measured] = n.means[: len(n.means) - _last_layers(len(n.means))]
    positive, negative = sum(x.low > 0 for x in earlier), sum(x.high < 0 for x in earlier)
    return judged(
        f"Of the {len(earlier)} layers below {_top(len(n.means))}, the mean score lies above 0 in {positive} and below "
        f"0 in {negative}; the lowest is {format_interval(least_of(earlier))}.",
        False if negative else True if positive > len(earlier) / 2 else None,
    )


def judge_peaks(n: Numbers) -> Judgement:
    """Judge whether the largest scores peak clearly in one layer below the last ones, and early enough."""
    n_layers = len(n.maxima)
    earlier = n.maxima[: n_layers - _last_layers(n_layers)]
    by_layer = earlier.mean(axis=1)
    peak = int(np.argmax(by_layer))
    size, rest = mean_of(earlier[peak], seed=n.seed), np.delete(by_layer, peak)
    prominent = ratio_of(earlier[peak], np.full(2, np.median(rest)), seed=n.seed) if len(rest) else None
    in_logits = mean_of(n.maxima_in_logits[peak], seed=n.seed)
    return judged(
        f"Below {_top(n_layers)} of {n_layers} the mean of the largest score peaks in layer {peak} "
        f"({format_interval(size)}, in logits of the stream {format_interval(in_logits)}); the median of the other "
        f"layers is {format_number(float(np.median(rest)))}.",
        above(in_logits, AT_LEAST),
        None if prominent is None else above(prominent, 1.5),
        peak <= 11 / 16 * (n_layers - 1),
    )


def judge_strongly_down(n: Numbers) -> Judgement:
    """Judge whether the last layers' smallest scores are clearly negative, and twice as negative as the other layers'.

    They must also be more negative than the other layers' in logits, that is, after the division by the scale that the
    final norm would have on the stream (if the model has a final norm).
    """
    n_layers, below_top = len(n.minima), len(n.minima) - _last_layers(len(n.minima))
    # The confidence intervals come from resampling whole examples, so each example must give one value: the mean over
    # its layers.
    (top, rest), (top_in_logits, rest_in_logits) = (
        (minima[below_top:].mean(axis=0), minima[:below_top].mean(axis=0)) for minima in (n.minima, n.minima_in_logits)
    )
    ratio, size = ratio_of(top, rest, seed=n.seed), mean_of(top, seed=n.seed)
    in_logits, scaled = mean_of(top_in_logits, seed=n.seed), ratio_of(top_in_logits, rest_in_logits, seed=n.seed)
    return judged(
        f"In {_top(n_layers)} of {n_layers} the smallest of the ten scores is {format_interval(size)} on average, in "
        f"the others {format_interval(mean_of(rest, seed=n.seed))}, a ratio of {format_interval(ratio)}; in logits of "
        f"the stream {format_interval(in_logits)} and {format_interval(mean_of(rest_in_logits, seed=n.seed))}, a ratio "
        f"of {format_interval(scaled)}.",
        below(in_logits, -AT_LEAST),
        above(ratio, 2),
        above(scaled, 1),
    )


def explain_means(m: Measurements) -> str:
    """State how often the FFN of one layer lowers the score of the token that is on top before it.

    The layer is the one with the lowest mean score below the last layers. Also state how many of its memories account
    for half of the sum of its negative scores.
    """
    found = figure_3(m).means
    layer = int(np.argmin([x.value for x in found[: len(found) - _last_layers(len(found))]]))
    change = m.sample.candidate_change[layer]
    few, of = _held_by_few(m, layer)
    return (
        f"The lowest is in layer {layer}, whose whole FFN update lowers its own candidate in "
        f"{format_percent((change < 0).mean())} of the examples; half of what is below 0 comes from {few} of "
        f"its {of:,} dominant memories."
    )


def _held_by_few(m: Measurements, layer: int) -> tuple[int, int]:
    """Return how many memories account for half of the sum of a layer's negative scores.

    Also return how many memories of the layer are dominant in at least one example.
    """
    scores = candidate_scores(m.sample, basis=m.options.basis)[layer]
    below = np.bincount(m.sample.dominant[layer].ravel(), weights=np.minimum(scores, 0).ravel())
    ordered = np.sort(below)
    return int(np.searchsorted(-np.cumsum(ordered), -below.sum() / 2)) + 1, len(np.unique(m.sample.dominant[layer]))


def explain_peaks(m: Measurements) -> str:
    """State in which layer below the last ones the largest score peaks if scores are converted to logits.

    Also state the median length (norm) of the stream in the first and in the last layer, because raw scores grow with
    it.
    """
    found, lengths = figure_3(m), np.median(m.sample.stream_length, axis=1)
    in_logits = found.maxima_in_logits.mean(axis=1)[: len(lengths) - _last_layers(len(lengths))]
    peak = int(np.argmax(in_logits))
    return (
        f"Raw scores grow with the stream, whose median length goes from {format_number(float(lengths[0]))} after "
        f"layer 0 to {format_number(float(lengths[-1]))} after the last; in logits of the stream the peak is in layer "
        f"{peak} ({format_number(float(in_logits[peak]))})."
    )


def explain_strongly_down(m: Measurements) -> str:
    """State which layer below the last ones has the lowest scores.

    Also state the mean length (norm) of the stream in all layers below the last ones, and in the last ones.
    """
    n = figure_3(m)
    lengths, below_top = np.median(m.sample.stream_length, axis=1), len(n.minima) - _last_layers(len(n.minima))
    lowest = int(np.argmin(n.minima[:below_top].mean(axis=1)))
    return (
        f"Below {_top(len(n.minima))} the smallest scores are in layer {lowest}, "
        f"{format_number(float(n.minima[lowest].mean()))} on average; the mean of the stream's median lengths is "
        f"{format_number(float(lengths[:below_top].mean()))} in these layers and "
        f"{format_number(float(lengths[below_top:].mean()))} above, and raw scores grow with it."
    )


QUANTITIES: tuple[Quantity[Measurements], ...] = (
    Quantity(
        "non-negative means",
        "Until the last few layers, maximum and minimum scores are distributed around non-negative mean scores.",
        where="Sec. 5.2, Fig. 3",
        what="mean of the ten scores of the top candidate, by layer below the last seventh",
        published="non-negative in every layer up to 22 of 24 (GPT2) and 13 of 16 (WikiLM)",
        test="No layer has a mean whose interval lies below 0, and more than half of them have one above 0; bootstrap "
        "over examples.",
        measure=_of_deep_models,
        judge=judge_means,
        explain=explain_means,
    ),
    Quantity(
        "early peaks",
        "There are prominent peaks in maximum scores in early and middle layers.",
        where="Sec. 5.2, Fig. 3",
        what="largest of the ten scores of the top candidate, by layer below the last seventh",
        published="peaks in layers 3 to 5 of 24 (GPT2) and 4 to 11 of 16 (WikiLM)",
        test=f"The peak lies in the first 11/16 of the depth, is above {AT_LEAST} logits of the stream, and is more "
        "than 1.5 times the median of the other layers; bootstrap over examples.",
        measure=_of_deep_models,
        judge=judge_peaks,
        explain=explain_peaks,
        references={
            "fig3": (
                Reference("peaks of GPT2 medium (published)", at=(2 / 23, 4 / 23)),
                Reference("peaks of WikiLM (published)", at=(3 / 15, 10 / 15)),
            )
        },
    ),
    Quantity(
        "strongly down",
        "Scores diverge in the last layers, with strong negative minimum scores: dominant sub-updates push the top "
        "candidate down.",
        where="Sec. 5.2, Fig. 3",
        what="smallest of the ten scores of the top candidate, last seventh of the layers over the others",
        published="strongly negative in layers 23-24 of GPT2 medium and 14-16 of WikiLM",
        test=f"The mean minimum of these layers is below -{AT_LEAST} logits of the stream, and more than twice that of "
        "the others; in logits of the stream too it is more than that of the others, so that it is no growth of the "
        "stream alone. Bootstrap over examples, whose layers are averaged first.",
        measure=_of_deep_models,
        judge=judge_strongly_down,
        explain=explain_strongly_down,
    ),
    *extremes.QUANTITIES,
)


def section(m: Measurements) -> Section:
    """Show Fig. 3, the clusters of extreme sub-updates, and which of these promote rare or common tokens."""
    extreme, no_figure = m.extreme, published.NOT_IN_PAPER
    scores, title = "Scores of the top candidate by the dominant sub-updates", "Extreme sub-updates by layer"
    return Section(
        "Promotion across layers (Sec. 5.2)",
        (
            "In every layer, the 10 dominant sub-updates score the top token of the stream before the FFN. The table "
            "has the largest, the mean and the smallest of the ten scores, averaged over examples.",
            "A dominant sub-update is extreme if its absolute score is more than "
            f"{format_number(extreme.threshold)} (the paper's thresholds, 10 and 5, are in the units of its models). "
            f"Each value is in one of {m.clusters.n_clusters:,} clusters of all values (average linkage, cosine; the "
            "paper: 10,000). The two groups are of sub-updates in frequently active clusters, the fewest clusters "
            f"with {format_percent(extremes.FREQUENT, 0)} of all appearances (the paper gives no number). A sub-update "
            "promotes rare tokens if at least half of its value's 10 top tokens are in the rarer half of the "
            "vocabulary, by their counts in the corpus; otherwise it promotes common tokens."
            + (
                f" {format_percent(m.unseen, 0)} of the tokens do not occur in the text of these counts, so the two "
                "groups mean nothing here."
                if m.unseen >= extremes.UNUSABLE
                else ""
            ),
            *_of_signs(m),
        ),
        (_figure_3(m), extremes.threshold_table(m), extremes.group_table(m), extremes.cluster_table(m)),
        (
            by_layer("fig3", scores, "fig3", ("max", "mean", "min"), f"score ({extreme.basis})", percent=False),
            by_layer(
                "fig3_in_logits",
                f"{scores}, with the stream's scale divided out",
                "fig3",
                {"max_in_logits": "max", "min_in_logits": "min"},
                "logits of the stream before the FFN",
                percent=False,
                published=no_figure,
            ),
            by_layer(
                "extremes", title, "fig3", ("extremes",), "appearances", "bar", percent=False, published=no_figure
            ),
        ),
    )


def _of_signs(m: Measurements) -> tuple[str, ...]:
    """Return a paragraph on the signs of value vectors in gated layers; empty for ungated models."""
    if not any(m.lm.is_signed(n) for n in range(m.lm.n_layers)):
        return ()
    return (
        "Layers are gated, and the sign of a value in the weights is only a convention. Values are clustered at the "
        "sign that their coefficients have on balance at the ends of the examples. The top tokens of an extreme "
        "sub-update are those at the sign of its own coefficient.",
    )


def _figure_3(m: Measurements) -> Exhibit:
    found, random = figure_3(m), candidate_scores(m.sample, basis=m.extreme.basis, random=True)
    cells = {
        "layer": range(m.sample.n_layers),
        "max": means(found.maxima, m.seed, share=False),
        "mean": found.means,
        "min": means(found.minima, m.seed, share=False),
        "random_max": random.max(-1).mean(-1).tolist(),
        "random_min": random.min(-1).mean(-1).tolist(),
        **{
            f"median_{name}": np.median(x, axis=1).tolist()
            for name, x in (("max", found.maxima), ("min", found.minima))
        },
        "max_in_logits": found.maxima_in_logits.mean(axis=1).tolist(),
        "min_in_logits": found.minima_in_logits.mean(axis=1).tolist(),
        "stream_length": np.median(m.sample.stream_length, axis=1).tolist(),
        "extremes": np.bincount(m.extreme.layer, minlength=m.sample.n_layers).tolist(),
    }
    apart = (("max_in_logits", "min_in_logits"), ("stream_length",), ("extremes",))
    note = "Averages over examples, and medians. In logits: of the stream before the FFN. Stream length: its median."
    return exhibit("fig3", "Scores of the top candidate by layer (Fig. 3)", cells, m.provenance, note, apart=apart)


PARTS = (Part(section, QUANTITIES),)

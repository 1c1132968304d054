"""Section 4: is the top token of a value vector the token that follows its key's triggers (Figs. 4 to 6, Table 2)?"""

from __future__ import annotations

import numpy as np

from unembed.document.exhibits import boxes, by_layer, exhibit, plain_mean, plain_median
from unembed.document.intervals import Measured, rank_correlation, share_of
from unembed.document.model import Exhibit, Figure, Reference, Section
from unembed.document.numbers import format_interval, percent
from unembed.memories.values import written_values
from unembed.reports.geva2021 import paper
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.parts.refinement import match
from unembed.reports.geva2021.values import Agreement
from unembed.reports.published import READ_OFF, SUMMARY, Origin
from unembed.reports.quantities import Numbers, Part, Quantity, Row, above, below, judged, once, within
from unembed.results import format_number, format_percent

BINS = 8
"""Number of bins into which keys are divided by the largest probability of their value vector (paper: eight)."""
PAPER_BINS = (8.9e-5, 1.3e-4, 1.8e-4, 2.2e-4, 2.7e-4, 3.1e-4, 3.6e-4, 4e-4)
"""The lower ends of the paper's bins (labels of Fig. 6)."""


def rates(a: Agreement) -> list[Measured]:
    """Return for every layer the share of memories whose value vector's top token follows the key's first trigger."""
    return [_rate(a, n, n + 1) for n in range(len(a.bounds) - 1)]


def ranks(a: Agreement) -> list[np.ndarray]:
    """Return for every layer the rank of each key's target in its value vector, NaN where there is no target."""
    rows = [a.rank[a.layer(n)] for n in range(len(a.bounds) - 1)]
    return [np.where(row > 0, row, np.nan) for row in rows]


def _rate(a: Agreement, start: int, stop: int) -> Measured:
    """Return the agreement rate of layers `start` to `stop` - 1; a gated memory agrees if either of its keys does."""
    counts = [(int(agrees.sum()), int(known.sum())) for agrees, known in map(a.of_memories, range(start, stop))]
    return share_of(sum(hits for hits, _ in counts), sum(n for _, n in counts))


@once
def agreement(m: Measurements) -> Numbers:
    """Measure how often a value vector's top token is the token that follows its key's first trigger."""
    a, n = m.agreement, m.n_layers
    return Numbers(
        upper=m.upper,
        low=_rate(a, 0, m.upper),
        high=_rate(a, m.upper, n),
        last=_rate(a, n - 1, n),
        whole=_rate(a, 0, n),
        by_chance=plain_mean(np.array([a.by_chance(n) for n in range(m.n_layers)])),
        one_token=1 / m.lm.d_vocab,
        d_vocab=m.lm.d_vocab,
        n_tokens=int(m.text.lengths.sum()),
    )


@once
def next_ranks(m: Measurements) -> Numbers:
    """Measure the rank, in the value vector, of the token that follows the first trigger, by layer."""
    a, layer = m.agreement, np.repeat(np.arange(m.n_layers), np.diff(m.triggers.bounds))
    known = a.rank > 0
    of_layer = [a.rank[known & (layer == n)] for n in range(m.n_layers)]
    return Numbers(
        medians=[plain_median(row) for row in of_layer],
        trend=rank_correlation(layer[known].astype(float), a.rank[known].astype(float), seed=m.seed),
        d_vocab=m.lm.d_vocab,
    )


@once
def by_probability(m: Measurements) -> Numbers:
    """Measure agreement in bins of equally many keys, sorted by the value vector's largest probability."""
    a, known = m.agreement, np.flatnonzero(m.agreement.target >= 0)
    order = known[np.argsort(a.probability[known], kind="stable")]
    parts = [part for part in np.array_split(order, BINS) if len(part)]
    return Numbers(
        bins=[share_of(int(a.agrees[part].sum()), len(part)) for part in parts],
        ends=[[float(f"{a.probability[part[at]]:.3g}") for part in parts] for at in (0, -1)],
        trend=rank_correlation(a.probability[known], a.agrees[known].astype(float), seed=m.seed),
    )


def by_paper_bins(a: Agreement) -> list[Measured]:
    """Return the agreement rate of the keys below the paper's first bin, and then in each of the paper's bins."""
    known = a.target >= 0
    bins = np.searchsorted(PAPER_BINS, a.probability[known], side="right")
    agrees = a.agrees[known]
    return [share_of(int(agrees[bins == n].sum()), int((bins == n).sum())) for n in range(len(PAPER_BINS) + 1)]


@once
def predictive(m: Measurements) -> Numbers:
    """Measure the keys whose value vectors have the largest top probability.

    Return how many of them lie in upper layers, and for how many the top token follows a trigger.
    """
    a, known = m.agreement, m.agreement.target >= 0
    order = np.argsort(-a.probability, kind="stable")[: m.options.predictive]
    in_upper = np.searchsorted(a.bounds, order, side="right") - 1 >= m.upper
    return Numbers(
        in_upper=share_of(int(in_upper.sum()), len(order)),
        even=(m.n_layers - m.upper) / m.n_layers,
        some=share_of(int((a.hits[order] > 0).sum()), int((a.followed[order] > 0).sum())),
        usual=share_of(int((a.hits[known] > 0).sum()), int(known.sum())),
        n=len(order),
        upper=m.upper,
        top=m.triggers.top,
    )


def explain_agreement(m: Measurements) -> str:
    """State the agreement rate by chance in the lower layers, if it is at least a third of the measured rate.

    If it is lower, state in which layer the measured rate is highest.
    """
    chance = plain_mean(np.array([m.agreement.by_chance(n) for n in range(max(m.upper, 1))]))
    rate = agreement(m).low.value
    if chance >= rate / 3:
        return (
            f"The vocabulary has {m.lm.d_vocab:,} tokens, the paper's {paper.D_VOCAB:,}: in the lower layers the same "
            f"tokens in random pairs agree in {format_percent(chance)}, which is "
            f"{format_percent(chance / max(rate, 1e-12))} of the rate."
        )
    by_layer = [x.value for x in rates(m.agreement)]
    most = int(np.argmax(by_layer))
    return f"The rate is highest in layer {most} of {m.n_layers} ({format_percent(by_layer[most])}). {explain_upper(m)}"


def explain_upper(m: Measurements) -> str:
    """State which share of the final predictions is already the stream's top token where the upper layers begin."""
    return (
        f"Where layer {m.upper} of {m.n_layers} begins, the residual stream already has "
        f"{format_percent(match(m).matches[m.upper].value)} of the predictions first: that many form in the lower "
        "layers."
    )


COMMON = 10
"""Number of the most frequent top tokens of value vectors whose share of all top tokens is stated."""


def explain_chance(m: Measurements) -> str:
    """State the share of value vectors that have one of the few most frequent top tokens.

    Also state how often one of these tokens follows a key's first trigger.
    """
    a = m.agreement
    known = a.target >= 0
    common = np.argsort(-np.bincount(a.top[known], minlength=m.lm.d_vocab), kind="stable")[:COMMON]
    first, followed = (float(np.isin(tokens[known], common).mean()) for tokens in (a.top, a.target))
    return (
        f"{COMMON} tokens are first in {format_percent(first)} of the values, and {format_percent(followed)} of the "
        f"next tokens are among them, so that random pairs already agree in {format_percent(agreement(m).by_chance)}."
    )


def explain_ranks(m: Measurements) -> str:
    """State how many next tokens rank among the first hundredth of the vocabulary, in lower and in upper layers."""
    a, layer = m.agreement, np.repeat(np.arange(m.n_layers), np.diff(m.triggers.bounds))
    known, ahead = a.rank > 0, a.rank <= m.lm.d_vocab / 100
    low, high = (float(ahead[known & side].mean()) for side in (layer < m.upper, layer >= m.upper))
    here = (
        f"Among the first hundredth of the vocabulary are {format_percent(low)} of the next tokens in the layers below "
        f"{m.upper} and {format_percent(high)} from there on (at random: 1 %)"
    )
    if max(low, high) < 0.1:
        return f"{here}: few values promote what follows a trigger, so that the median is near that of a random token."
    return f"{here}. {explain_upper(m)}"


def explain_predictive_upper(m: Measurements) -> str:
    """If value vectors have larger norms in lower layers, state that a larger norm makes the top probability larger.

    Otherwise, state how many predictions are already formed where the upper layers begin.
    """
    lengths = [float(written_values(m.lm, n).float().norm(dim=-1).mean()) for n in range(m.n_layers)]
    low, high = float(np.mean(lengths[: m.upper] or [0.0])), float(np.mean(lengths[m.upper :]))
    if low <= 1.2 * high:
        return explain_upper(m)
    return (
        f"A value is read without a coefficient or norm, so that its length sets its largest probability, and values "
        f"below layer {m.upper} are {format_number(low / high)} times as long as those above."
    )


QUANTITIES: tuple[Quantity[Measurements], ...] = (
    Quantity(
        "agreement rises",
        "The agreement rate is close to zero in the lower layers, and from layer 11 on it quickly rises to 3.5 %.",
        where="Sec. 4.1, Fig. 4",
        what="share of values whose first token follows their key's first trigger",
        published="close to zero in layers 1 to 10, rising to 3.5 %",
        test="Below 0.5 % in the lower layers (a seventh of 3.5 %), more in the upper ones, and above 1 % in the last; "
        "exact binomial intervals over values.",
        measure=agreement,
        judge=lambda n: judged(
            f"In the layers below {n.upper}, {percent(n.low)} of the values put first what follows their key's first "
            f"trigger, in layer {n.upper} and above {percent(n.high)}, and in the last {percent(n.last)}. Triggers are "
            f"of {n.n_tokens:,} tokens of text (the paper: {paper.N_TOKENS}).",
            below(n.low, 0.005),
            above(n.high, n.low.high),
            above(n.last, 0.01),
        ),
        explain=explain_agreement,
        rows=lambda n: (
            Row(f"agreement rate, layers below {n.upper}", n.low, 0, "“close to zero” in layers 1 to 10 of 16"),
            Row(f"agreement rate, layers from {n.upper} on", n.high, source="rising to 3.5 % (Sec. 4.1, Fig. 4)"),
            Row("agreement rate, last layer", n.last, 3.5),
        ),
        references={
            "fig4_agreement": (
                Reference(
                    "published",
                    (0.0, 0.0, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035),
                    at=paper.at(1, *range(10, 17)),
                    series=0,
                ),
            )
        },
        origins=(
            Origin("agreement rate", "close to zero in layers 1 to 10, then rising to 3.5 %", SUMMARY),
            Origin("agreement rate, layers 11 to 15", "1.0, 1.5, 2.0, 2.5, 3.0 %", READ_OFF, "Fig. 4"),
        ),
    ),
    Quantity(
        "agreement above chance",
        "The agreement rate is orders of magnitude higher than a random token's.",
        where="Sec. 4.1",
        what="agreement rate over that of a random token, and over random pairs of the same tokens",
        published="3.5 % against 0.0004 %",
        test="More than 100 times a random token and more than 10 times the same values and targets in random pairs: "
        "in a small vocabulary frequent tokens meet by chance.",
        measure=agreement,
        judge=lambda n: judged(
            f"{percent(n.whole)} of all values put first what follows their key's first trigger, "
            f"{format_number(n.whole.value / n.one_token)} times a random token and "
            f"{format_number(n.whole.value / n.by_chance if n.by_chance > 0 else float('inf'))} times the same tokens "
            "in random pairs.",
            above(n.whole, 100 * n.one_token),
            above(n.whole, 10 * n.by_chance),
        ),
        explain=explain_chance,
        rows=lambda n: (
            Row("a random token", Measured(n.one_token, n.one_token, n.one_token, n.d_vocab), 0.0004),
        ),
        origins=(Origin("agreement of a random token", "0.0004 %", SUMMARY),),
    ),
    Quantity(
        "ranks improve",
        "The rank of the trigger's next token in the value's distribution improves through the layers.",
        where="Sec. 4.1, Fig. 5",
        what="rank of the next token, by layer",
        published="median rank about 10,000 to 15,000 in layers 1 to 7 and up to 2,000 in 14 to 16, of 267,744 "
        "(by eye)",
        test="The rank correlation with the layer over all keys is below 0, and the last layer's median is less than "
        "half of the first's; bootstrap over keys.",
        measure=next_ranks,
        judge=lambda n: judged(
            f"The median rank of the trigger's next token goes from {format_number(n.medians[0], decimals=0)} in the "
            f"first layer to {format_number(n.medians[-1], decimals=0)} in the last, of {n.d_vocab:,} tokens; the "
            f"rank correlation with the layer is {format_interval(n.trend)} over keys.",
            below(n.trend, 0),
            # From the first to the last layer, the median rank must at least halve: a smaller change is no clear
            # improvement.
            bool(n.medians[-1] < n.medians[0] / 2),
        ),
        explain=explain_ranks,
        origins=(
            Origin(
                "rank of the next token",
                "medians of 10,000 to 15,000 in layers 1 to 7, to 2,000 in 14 to 16",
                READ_OFF,
                "Fig. 5",
            ),
        ),
    ),
    Quantity(
        "probability and agreement",
        "Agreement increases with the value's maximum probability.",
        where="Sec. 4.2, Fig. 6",
        what="agreement rate in eight bins of the largest probability",
        published="from near 0 to about 0.95 over the bins (by eye)",
        test="The rank correlation over values is above 0, and the highest bin lies above every other; bootstrap over "
        "values, exact binomial interval.",
        measure=by_probability,
        judge=lambda n: judged(
            f"Of the eighth of the values with the lowest largest probability {percent(n.bins[0])} put first what "
            f"follows their key's first trigger, of that with the highest {percent(n.bins[-1])}; the rank correlation "
            f"is {format_interval(n.trend)} over values.",
            above(n.trend, 0),
            above(n.bins[-1], max(b.value for b in n.bins[:-1])),
        ),
        references={"fig6_max_probability": (Reference("published", (0.0, 0.95), at=(0.0, 1.0), series=0),)},
        origins=(
            Origin("agreement by probability", "from near 0 to about 0.95", READ_OFF, "Fig. 6"),
            Origin("bins of the largest probability", "8.9e-5 to 4e-4", READ_OFF, "Fig. 6"),
        ),
    ),
    Quantity(
        "predictive values are upper",
        "97 of the 100 values with the highest maximum probability are in the upper layers.",
        where="Sec. 4.2",
        what="share of them in the layers as deep as 11 to 16 of 16",
        published="97 of 100",
        test="More than 75 % and more than by chance; exact binomial interval.",
        measure=predictive,
        judge=lambda n: judged(
            f"Of the {n.n} most predictive values {percent(n.in_upper)} lie in layers from {n.upper} on, "
            f"{format_percent(n.even, 0)} by chance.",
            above(n.in_upper, max(n.even, 0.75)),
        ),
        explain=explain_predictive_upper,
        rows=lambda n: (
            Row(f"of the {n.n} most predictive values, in the upper layers", n.in_upper, 97),
        ),
        origins=(
            Origin("the 100 most predictive values", "97 in layers 11 to 16, 46 with an agreeing trigger", SUMMARY),
        ),
    ),
    Quantity(
        "predictive values agree",
        "46 of these 100 values agree with at least one of their key's top-50 triggers.",
        where="Sec. 4.2",
        what="share of them whose first token follows at least one trigger",
        published="46 of 100",
        test="Between 31 and 61 %, fifteen points around the published share, and more than of all values; exact "
        "binomial intervals.",
        measure=predictive,
        judge=lambda n: judged(
            f"{percent(n.some)} of the most predictive values follow one of their triggers, {percent(n.usual)} of all "
            "values.",
            within(n.some, 0.31, 0.61),
            above(n.some, n.usual.high),
        ),
        rows=lambda n: (
            Row(f"of the {n.n}, with an agreeing trigger in the top {n.top}", n.some, 46),
            Row("of all values, with an agreeing trigger", n.usual),
        ),
    ),
)  # fmt: skip


def values_section(m: Measurements) -> Section:
    """Show how often the top token of a value vector is the token that follows its key's triggers."""
    a, bins = m.agreement, by_probability(m)
    of_layers = {
        "layer": range(m.n_layers),
        "agreement": rates(a),
        "by_chance": [a.by_chance(n) for n in range(m.n_layers)],
        **boxes("rank", ranks(a)),
    }
    of_bins = {"bin": range(len(bins.bins)), "from": bins.ends[0], "to": bins.ends[1], "agreement": bins.bins}
    of_paper_bins = {"from": [0.0, *PAPER_BINS], "to": [*PAPER_BINS, 1.0], "agreement": by_paper_bins(a)}
    scale = m.lm.d_vocab / paper.D_VOCAB
    published_ranks = Reference(
        "published, scaled to this vocabulary",
        tuple(rank * scale for rank in (10_000, 10_000, 0, 0)),
        tuple(rank * scale for rank in (15_000, 15_000, 2_000, 2_000)),
        paper.at(1, 7, 14, 16),
    )
    return Section(
        "Values represent distributions",
        (
            "Each value v is read as a distribution over tokens, p = softmax(v E), without a coefficient or norm "
            f"(basis “{m.options.values_basis}”). A value agrees with its key if its top token is the token that "
            "follows the key's first trigger (the one with the largest coefficient among those with a next token). “By "
            "chance” is the agreement if each value is paired with a random key of its layer.",
            *_of_both_signs(m),
        ),
        (
            exhibit("agreement", "Agreement of values with their keys' first triggers", of_layers, m.provenance,
                    percent=("agreement", "by_chance")),
            exhibit("max_probability", "Agreement by the largest probability", of_bins, m.provenance,
                    percent=("agreement",)),
            exhibit("max_probability_published", "Fig. 6: agreement in the paper's bins of the largest probability",
                    of_paper_bins, m.provenance,
                    f"The paper's vocabulary has {paper.D_VOCAB:,} words, so that a word's even share is "
                    f"{format_number(1 / paper.D_VOCAB)}; here it is {format_number(1 / m.lm.d_vocab)}.",
                    percent=("agreement",)),
            _predictive_values(m),
        ),
        (
            by_layer("fig4_agreement", "Fig. 4: agreement rate", "agreement",
                     {"agreement": "agreement", "by_chance": "by chance"}, "values", percent=True),
            by_layer("fig5_rank", "Fig. 5: rank of the trigger's next token in the value's distribution", "agreement",
                     {"rank": "rank"}, "rank", "box", percent=False, references=(published_ranks,)),
            Figure(
                "fig6_max_probability", "Fig. 6: agreement by the value's largest probability", "bar",
                "max_probability", "from", ("agreement",), ("agreement",), "largest probability, from", "values",
                percent=True,
            ),
        ),
    )  # fmt: skip


def _of_both_signs(m: Measurements) -> tuple[str, ...]:
    """Return a paragraph that defines keys and agreement for gated layers; empty for ungated models."""
    if not m.triggers.signed.any():
        return ()
    return (
        "The layers are gated, so a coefficient can have either sign. Which sign is positive is only a convention: "
        "negating the up-projection and the value of a memory does not change the model. Each memory therefore counts "
        "as two keys. For the negative key, the triggers are the prefixes with the lowest coefficients, and the value "
        "is read as −v. A memory agrees if one of its two keys does; “by chance” counts both, too, so it is about "
        "twice that of one sign. Ranks and probabilities are those of all keys. A minus sign before a memory's name "
        "stands for negative coefficients.",
    )


def _predictive_values(m: Measurements) -> Exhibit:
    """Show the value vectors with the most probable top tokens, and how often these follow a trigger (Table 2)."""
    a, triggers = m.agreement, m.triggers
    order = np.argsort(-a.probability, kind="stable")[: m.options.predictive]
    layers = np.searchsorted(a.bounds, order, side="right") - 1
    followed = a.followed[order].tolist()
    cells = {
        "value": [
            m.lm.memory_name(int(n), *triggers.memory(int(n), int(row - a.bounds[n])))
            for row, n in zip(order, layers, strict=True)
        ],
        "token": m.lm.token_strings(a.top[order].tolist()),
        "triggers": followed,
        "max_probability": a.probability[order].tolist(),
        "precision": [h / f if f else float("nan") for h, f in zip(a.hits[order].tolist(), followed, strict=True)],
        "first_trigger_text": [m.prefix_text(p) for p in triggers.positions[order, 0].tolist()],
    }
    title, shares = f"The {len(order)} most predictive values", ("max_probability", "precision")
    note = (
        f"Precision: the share of the key's top {triggers.top} triggers that are followed by the value's first token."
    )
    return exhibit("predictive_values", title, cells, m.provenance, note, percent=shares, folded=True)


PARTS = (Part(values_section, QUANTITIES, "values_published", "Values: here and published"),)

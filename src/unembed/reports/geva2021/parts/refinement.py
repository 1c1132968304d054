"""Section 5.2: residual connections refine predictions layer by layer (Figs. 9 to 11), also in the last layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from unembed.document.exhibits import boxes, by_layer, exhibit, means, plain_mean, plain_median
from unembed.document.intervals import Measured, mean_of, paired_difference, share_of
from unembed.document.model import QUANTILES, Reference, Section
from unembed.document.numbers import percent, points
from unembed.reports.geva2021 import paper
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.parts.aggregation import stop_words
from unembed.reports.geva2021.word_similarity import RELATED, by_wordnet, cosines, share_of_closer
from unembed.reports.published import READ_OFF, SUMMARY, Origin
from unembed.reports.quantities import (
    Judgement,
    Numbers,
    Part,
    Quantity,
    Row,
    above,
    judged,
    least_of,
    most_of,
    once,
    within,
)
from unembed.results import format_number, format_percent, format_setting

CLASSES = {
    "residual": "residual alone",
    "agreement": "both agree",
    "composition": "neither: composition",
    "ffn": "FFN alone",
    "joint": "both agree, output differs",
}
HEAD = 10
"""The new top token is searched for among this many top tokens of the residual."""
FEWEST_PAIRS = 20
"""Smallest number of cases that is judged."""
A_THIRD = 1 / 3
"""The paper's share of predictions that the bottom layers determine."""
FEW_TOKENS = 3
"""Number of the most frequent predicted tokens whose share of all predictions is stated."""


def breakdown(residual: np.ndarray, update: np.ndarray, output: np.ndarray) -> dict[str, np.ndarray]:
    """Return masks that tell whether the top token of a layer's output (o) is that of its residual (r) or update (y).

    residual: o = r ≠ y. ffn: o = y ≠ r. agreement: o = r = y. composition: r ≠ y and o is neither. joint: r = y and o
    is another token, which is possible only with a final norm or an adaptive softmax.

    Args:
        residual: token ids, and so for `update` and `output`; all have the same shape.
    """
    follows_r, follows_y, same = output == residual, output == update, residual == update
    return {
        "residual": follows_r & ~same,
        "agreement": follows_r & same,
        "composition": ~follows_r & ~follows_y & ~same,
        "ffn": follows_y & ~same,
        "joint": ~follows_r & same,
    }


def _kinds(m: Measurements) -> dict[str, np.ndarray]:
    return breakdown(*(m.examples[name] for name in ("residual", "update", "output")))


def _shares(claims: np.ndarray) -> list[Measured]:
    """Return for each layer the share of examples for which `claims` (layer, example) is True."""
    return [share_of(int(row.sum()), len(row)) for row in claims]


@once
def match(m: Measurements) -> Numbers:
    """Measure in which layers the residual's top token is the final prediction, and from which layer on it stays so."""
    e, n_layers, upper, seed = m.examples, m.n_layers, m.upper, m.seed
    equal = e["residual"] == e["output"][-1]  # (layer, example)
    # An example has settled at a layer if the residual's top token is the final prediction in this and all later
    # layers.
    settled = np.logical_and.accumulate(equal[::-1], axis=0)[::-1]
    matches, bottom = _shares(equal), max(1, round(n_layers / 4)) if n_layers > 1 else 0
    steps = np.diff(equal.astype(float), axis=0)  # growth into the next layer, (layer - 1, example)
    steep, flat = (rows.mean(axis=0) if len(rows) else None for rows in (steps[upper:], steps[:upper]))
    growth = None if steep is None or flat is None else paired_difference(steep, 2 * flat, seed=seed)
    return Numbers(
        matches=matches,
        settled=_shares(settled),
        bottom=bottom,
        decided=matches[bottom],
        steep=None if steep is None else mean_of(steep, seed=seed),
        flat=None if flat is None else mean_of(flat, seed=seed),
        growth=growth,
        upper=upper,
    )


@once
def probability(m: Measurements) -> Numbers:
    """Measure how the probability of the final prediction in the residual grows from layer to layer."""
    found = m.examples["probability"].astype(float)
    return Numbers(
        steps=[mean_of(step, seed=m.seed) for step in np.diff(found, axis=0)],
        rise=paired_difference(found[-1], found[0], seed=m.seed),
    )


@once
def outputs(m: Measurements) -> Numbers:
    """Measure how often the output's top token is the residual's but not the update's, and how often it is another one.

    Also measure in which share of the latter cases it is not the update's top token either.
    """
    e, kinds = m.examples, _kinds(m)
    changed = e["output"] != e["residual"]
    layers, which = np.nonzero(changed)
    composed = (kinds["composition"] | kinds["joint"])[layers, which]
    return Numbers(
        alone=_shares(kinds["residual"]),
        changed=_shares(changed),
        composed=mean_of(composed, units=which, seed=m.seed, share=True),
    )


@once
def overturned(m: Measurements) -> Numbers | None:
    """Where a layer changes the top token, measure the new token's rank in the residual and in the FFN's update."""
    e, seed = m.examples, m.seed
    layers, which = np.nonzero(e["output"] != e["residual"])
    if len(layers) < FEWEST_PAIRS:
        return None
    in_residual, in_update = (e[f"output_in_{name}"][layers, which] for name in ("residual", "update"))
    return Numbers(
        n=len(layers),
        median=[float(np.median(ranks)) for ranks in (in_residual, in_update)],
        head=mean_of(in_residual <= HEAD, units=which, seed=seed, share=True),
        ahead=mean_of(in_residual < in_update, units=which, seed=seed, share=True),
        by_chance=HEAD / m.lm.d_vocab,
        d_vocab=m.lm.d_vocab,
    )


def judge_growth(n: Numbers) -> Judgement:
    """Judge whether matches with the final prediction grow faster in the upper layers than below."""
    if n.growth is None:
        return Judgement("The model has too few layers to compare growth.", "not applicable")
    return judged(
        "The share of examples whose residual has the final prediction first grows by "
        f"{points(n.steep)} a layer from layer {n.upper} on and by {points(n.flat)} below it.",
        above(n.growth, 0),
        above(n.steep, 0),
    )


def judge_rise(n: Numbers) -> Judgement:
    """Judge whether the final prediction's probability in the residual rises and never falls from layer to layer."""
    falls = sum(step.high < 0 for step in n.steps)
    return judged(
        f"The residual's probability of the prediction rises by {points(n.rise)} on average from the first layer to "
        f"the last, and falls from one layer to the next in {falls} of {len(n.steps)} steps.",
        falls == 0,
        above(n.rise, 0.05),
    )


def explain_growth(m: Measurements) -> str | None:
    """State by how much the share of matches can still grow in the upper layers.

    None if growth by this much would pass the test.
    """
    found, upper, n_layers = match(m), m.upper, m.n_layers
    matched = float((m.examples["residual"][upper] == m.examples["output"][-1]).mean())
    left = (1 - matched) / max(n_layers - upper, 1)
    if found.flat is None or left >= 2 * found.flat.value:
        return None
    return (
        f"With {n_layers} layers instead of 16, {format_percent(matched)} of the predictions are decided where layer "
        f"{upper} begins, so that the share can grow by {format_number(100 * left)} points a layer at most, less than "
        "twice the growth below."
    )


def explain_alone(m: Measurements) -> str:
    """Explain the layer in which the output's top token least often comes from the residual alone.

    States how often residual and update agree there, and how often the FFN changes the top token.
    """
    kinds = {name: rows.mean(axis=1) for name, rows in _kinds(m).items()}
    layer = int(np.argmin(kinds["residual"]))
    changed = float(sum(kinds[name][layer] for name in ("composition", "joint", "ffn")))
    return (
        f"In layer {layer}, the least, both agree in {format_percent(kinds['agreement'][layer])} of the examples, and "
        f"in {format_percent(changed)} the FFN changes the first token."
    )


def explain_decided(m: Measurements) -> str:
    """State from which layer on the residual's top token is the final prediction in half of the examples.

    If too many predictions are decided early, state what share of all predictions the few most frequent tokens make up.
    """
    found = match(m)
    if found.decided.value < A_THIRD:
        half = next((n for n, x in enumerate(found.matches) if x.value >= 0.5), None)
        if half is not None:
            return f"The residual has half of the predictions first only from layer {half} of {m.n_layers} on."
        most = int(np.argmax([x.value for x in found.matches]))
        return (
            f"In no layer does the residual have half of the predictions first; the most is "
            f"{format_percent(found.matches[most].value)}, in layer {most} of {m.n_layers}."
        )
    counts = np.bincount(m.examples["output"][-1].astype(np.int64))
    alike = float(np.sort(counts)[-FEW_TOKENS:].sum() / counts.sum())
    return (
        f"With {m.n_layers} layers, a quarter of the way up is layer {found.bottom}; before the first FFN the residual "
        f"has {format_percent(found.matches[0].value)} of the predictions first, and {format_percent(alike)} of them "
        f"are one of {FEW_TOKENS} tokens."
    )


def explain_falls(m: Measurements) -> str:
    """State where the prediction's probability falls most, and how often it is the top token before and after."""
    steps, matches = probability(m).steps, match(m).matches
    at = int(np.argmin([step.value for step in steps]))
    before, after = matches[at].value, matches[at + 1].value
    how = "it gets less likely, not less often first" if after >= before else "it is less often first, too"
    return (
        f"In the largest fall, into layer {at + 1} ({format_number(100 * steps[at].value)} points), the share of "
        f"examples whose residual has the prediction first goes from {format_percent(before)} to "
        f"{format_percent(after)}: {how}."
    )


def explain_changes(m: Measurements) -> str:
    """State which layer changes the top token most often, and how often the new token is the update's own top token."""
    changed, own = m.examples["output"] != m.examples["residual"], m.examples["output_in_update"] == 1
    layer = int(changed.sum(axis=1).argmax())
    share = float(changed[layer].sum() / max(changed.sum(), 1))
    elsewhere = np.delete(own, layer, axis=0)[np.delete(changed, layer, axis=0)]
    others = f"; in the other layers it is in {format_percent(plain_mean(elsewhere))}" if len(elsewhere) else ""
    return (
        f"{format_percent(share)} of the changes are in layer {layer}, where the new token is the update's own first "
        f"token in {format_percent(plain_mean(own[layer][changed[layer]]))}{others}."
    )


REFINEMENT: tuple[Quantity[Measurements], ...] = (
    Quantity(
        "decided early",
        "Roughly a third of the predictions are determined in the bottom few layers.",
        where="Sec. 5.2, Fig. 9",
        what="share of examples whose prediction the residual already has a quarter of the way up",
        published="roughly a third",
        test="Between 25 and 42 %, a quarter around a third; exact binomial interval over examples.",
        measure=match,
        judge=lambda n: judged(
            f"In {percent(n.decided)} of the examples the residual that enters FFN {n.bottom} has the final "
            "prediction first.",
            within(n.decided, 0.25, 0.42),
        ),
        explain=explain_decided,
        rows=lambda n: (
            Row(
                f"decided in the bottom layers (residual entering FFN {n.bottom})",
                n.decided,
                33,
                "“roughly a third” (Sec. 5.2)",
            ),
            Row("residual equals the prediction, first layer", n.matches[0]),
            Row("residual equals the prediction, last layer", n.matches[-1], source="about 95 %, read off Fig. 9"),
            Row("settled for good before the last FFN", n.settled[-1]),
        ),
        references={"fig9_match": (Reference("published", (1 / 3, 0.95), at=paper.at(4, 16), series=0),)},
        origins=(
            Origin("decided in the bottom layers", "roughly a third", SUMMARY),
            Origin("residual equal to the prediction, layer 16", "about 95 %", READ_OFF, "Fig. 9"),
        ),
    ),
    Quantity(
        "fast growth",
        "This number grows rapidly from layer 10 onwards.",
        where="Sec. 5.2, Fig. 9",
        what="growth of that share per layer, from the layer as deep as 11 of 16 on and below it",
        published="rapid growth from layer 10 of 16",
        test="More than twice the growth of the layers below; bootstrap over examples.",
        measure=match,
        judge=judge_growth,
        explain=explain_growth,
    ),
    Quantity(
        "probability grows",
        "The probability that the residual gives to the prediction grows through the layers.",
        where="Sec. 5.2, Fig. 10",
        what="probability of the final prediction in the residual, by layer",
        published="medians near 0 up to layer 7, 0.6 to 0.8 in layers 14 to 16 (by eye)",
        test="It falls in no step beyond its interval and rises by more than 5 points in all; bootstrap over examples.",
        measure=probability,
        judge=judge_rise,
        explain=explain_falls,
        references={
            "fig10_probability": (
                Reference("median, published", (0.0, 0.0, 0.6, 0.6), (0.0, 0.0, 0.8, 0.8), paper.at(1, 7, 14, 16)),
            )
        },
        origins=(
            Origin(
                "probability in the residual",
                "medians near 0 up to layer 7, 0.6 to 0.8 in 14 to 16",
                READ_OFF,
                "Fig. 10",
            ),
        ),
    ),
    Quantity(
        "follows the residual",
        "In the vast majority of examples the layer's output follows the residual.",
        where="Sec. 5.2, Fig. 11",
        what="share of examples in which the output has the residual's token and the update another, by layer",
        published="60 to 85 % (by eye)",
        test="Every layer lies between 55 and 90 %, five points around the published band; exact binomial intervals "
        "over examples.",
        measure=outputs,
        judge=lambda n: judged(
            f"The output follows the residual alone in {percent(least_of(n.alone))} to {percent(most_of(n.alone))} of "
            "the examples, by layer.",
            *(within(x, 0.55, 0.9) for x in n.alone),
        ),
        explain=explain_alone,
        rows=lambda n: (
            Row("output that follows the residual alone, least layer", least_of(n.alone), source="60 to 85 %"),
            Row("output that follows the residual alone, most", most_of(n.alone), source="Fig. 11, by eye"),
        ),
        references={"fig11_breakdown": (Reference("residual alone, published", (0.6,), (0.85,), series=0),)},
        origins=(Origin("output that follows the residual alone", "60 to 85 %", READ_OFF, "Fig. 11"),),
    ),
    Quantity(
        "compromise",
        "Where the output is another token, it is rarely the FFN's own but a compromise of both.",
        where="Sec. 5.2, Fig. 11",
        what="share of changed outputs that are neither part's first token",
        published="most of them",
        test="More than half; bootstrap over examples, whose layers are resampled together.",
        measure=outputs,
        judge=lambda n: judged(
            f"{percent(n.composed)} of the changed outputs are neither the residual's nor the update's token.",
            above(n.composed, 0.5),
        ),
        explain=explain_changes,
        rows=lambda n: (Row("changed outputs that are compositions", n.composed, source="most of them (Sec. 5.2)"),),
    ),
    Quantity(
        "veto",
        "The FFN vetoes the residual's top prediction, so that another candidate from the head of the residual's "
        "distribution takes its place.",
        where="Sec. 5.2",
        what=f"changed outputs whose new token was among the first {HEAD} of the residual, and its rank there and in "
        "the FFN's update",
        published="in words",
        test=f"In more than half of the changes the new token was among the residual's first {HEAD}, and in more than "
        "half it ranked higher in the residual than in the update; bootstrap over examples, whose layers are resampled "
        f"together. A random token is among the first {HEAD} in almost no case, and ahead in one half.",
        measure=overturned,
        judge=lambda n: judged(
            f"In {n.n:,} changes the new token had the median rank {format_number(n.median[0], decimals=0)} in the "
            f"residual and {format_number(n.median[1], decimals=0)} in the FFN's update (a random token: "
            f"{format_number(n.d_vocab / 2, decimals=0)} of {n.d_vocab:,}). In {percent(n.head)} it was among the "
            f"residual's first {HEAD} (a random token: {format_percent(n.by_chance, 2)}), and in {percent(n.ahead)} "
            "it ranked higher in the residual than in the update.",
            above(n.head, 0.5),
            above(n.ahead, 0.5),
        ),
        explain=explain_changes,
        rows=lambda n: (
            Row(f"changed outputs among the residual's first {HEAD}", n.head),
            Row("changed outputs that rank higher in the residual than in the update", n.ahead),
        ),
    ),
)


def refinement_section(m: Measurements) -> Section:
    """Show in which layers the residual already has the final prediction, and how each FFN changes it."""
    found, kinds = match(m), _kinds(m)
    residual = {
        "layer": range(m.n_layers),
        "match": found.matches,
        "settled": found.settled,
        "mean_probability": means(m.examples["probability"], m.seed),
        **boxes("probability", m.examples["probability"]),
    }
    parts = {
        "layer": range(m.n_layers),
        **{kind: kinds[kind].mean(axis=1).tolist() for kind in CLASSES},
        "output_changes": outputs(m).changed,
    }
    changed = m.examples["output"] != m.examples["residual"]
    ranks = {
        "layer": range(m.n_layers),
        **{
            f"in_{name}": [plain_median(m.examples[f"output_in_{name}"][n][changed[n]]) for n in range(m.n_layers)]
            for name in ("residual", "update")
        },
    }
    veto = "Where the FFN changes the first token: median rank of the new token before, in each part"
    shares = ("match", "settled", "mean_probability", *(f"probability_{q}" for q in QUANTILES))
    note = "Settled: this layer's residual and all later ones predict what the model predicts."
    equal, chance = {"match": "equal", "settled": "equal from here on"}, {"probability": "probability"}
    title_9 = "Fig. 9: the residual's first token is the prediction"
    title_10 = "Fig. 10: probability the residual gives to the prediction"
    title_11 = "Fig. 11: what the layer's output follows"
    return Section(
        "Residual connections refine predictions",
        (
            f"Measured on {len(m.positions):,} random prefixes. r is the residual to which an FFN adds its update y, "
            "o = r + y is the layer's output, and w is the model's final prediction. All are decoded in the basis "
            f"“{m.options.basis}”; the output of the last layer is decoded as the model itself does. The breakdown "
            "shows whether the top token of o is that of r alone, of y alone, of both, or of neither (a composition).",
        ),
        (
            exhibit("residual", "What the residual already predicts", residual, m.provenance, note, percent=shares),
            exhibit("breakdown", "What the output follows", parts, m.provenance, percent=(*CLASSES, "output_changes")),
            exhibit(
                "veto", veto, ranks, m.provenance, f"A random token: {format_number(m.lm.d_vocab / 2, decimals=0)}."
            ),
        ),
        (
            by_layer("fig9_match", title_9, "residual", equal, "examples", y_range=(0, 1)),
            by_layer(
                "fig10_probability", title_10, "residual", chance, "probability", "box", percent=False, y_range=(0, 1)
            ),
            by_layer("fig11_breakdown", title_11, "breakdown", CLASSES, "examples", "stacked", y_range=(0, 1)),
        ),
    )


@dataclass(frozen=True, eq=False)
class Compositions:
    """Examples in which the last layer's output has neither the residual's nor the update's top token."""

    found: Int[np.ndarray, " composition"]
    """Indices of all such examples."""
    chosen: Int[np.ndarray, " pair"]
    """Indices of the sampled examples; of each, the residual's and the output's top token are compared as a pair."""
    wordnet: Float[np.ndarray, " pair"]
    cosine: Float[np.ndarray, " pair"]
    related: Bool[np.ndarray, " pair"]
    known: Bool[np.ndarray, " pair"]
    """Whether the rules can decide if the two tokens are related."""


def judge_compositions(m: Measurements) -> Compositions:
    """Sample compositions of the last layer (see `breakdown`), and judge if the new token is related to the residual's.

    Two tokens are related if their WordNet similarity is at least `RELATED`, or if their embeddings are closer than
    those of 99 % of random pairs of similar frequency. Otherwise they are distant if WordNet has both, or if their
    embeddings are closer than those of fewer than 90 % of such pairs. All other pairs are undecided.
    """
    before_all, update, output = (m.examples[name][-1].astype(np.int64) for name in ("residual", "update", "output"))
    kinds = breakdown(before_all, update, output)
    found = np.flatnonzero(kinds["composition"] | kinds["joint"])
    random = np.random.default_rng([m.seed, 5])
    chosen = np.sort(random.choice(found, min(m.options.compositions, len(found)), replace=False))
    before, after = before_all[chosen], output[chosen]
    lin = by_wordnet(m.lm, before.tolist(), after.tolist())
    cosine = cosines(m.lm, before, after) if len(chosen) else np.zeros(0)
    counts = np.bincount(m.example_text.token, minlength=m.lm.d_vocab)
    rank = share_of_closer(m.lm, before, after, cosine, counts, m.seed)
    related = (np.nan_to_num(lin, nan=0.0) >= RELATED) | (rank >= 0.99)
    known = related | ~np.isnan(lin) | (rank < 0.9)
    return Compositions(found, chosen, lin, cosine, related, known)


@once
def compositions(m: Measurements) -> Numbers:
    """Measure the share of compositions in the last layer, and how many of those sampled move to a related token."""
    found = judge_compositions(m)
    related, known = int(found.related.sum()), int(found.known.sum())
    return Numbers(
        judged=found,
        n_pairs=len(found.known),
        share=share_of(len(found.found), len(m.positions)),
        related=share_of(related, known),
        distant=share_of(known - related, known),
    )


def explain_distant(m: Measurements) -> str:
    """State how many of the judged pairs have a stop word, and how many of the others are related."""
    found: Compositions = compositions(m).judged
    stop = stop_words(m.lm)
    pairs = (m.examples[name][-1].astype(np.int64)[found.chosen] for name in ("residual", "output"))
    common = np.any([stop[tokens] for tokens in pairs], axis=0) & found.known
    others = found.known & ~common
    return (
        f"In {int(common.sum())} of the {int(found.known.sum())} judged pairs one of the two tokens is a stop word or "
        f"punctuation; of the other {int(others.sum())}, {int((found.related & others).sum())} are related."
    )


LAST_LAYER: tuple[Quantity[Measurements], ...] = (
    Quantity(
        "distant compositions",
        "Of 100 last-layer compositions 66 go to a semantically distant token and 34 to a related one.",
        where="Sec. 5.2",
        what="related tokens among compositions of the last layer",
        published="34 of 100 related, by hand",
        test="Between 19 and 49 % related, fifteen points around the published share; fewer than "
        f"{FEWEST_PAIRS} pairs that can be judged are no evidence. Exact binomial interval over examples.",
        measure=compositions,
        judge=lambda n: judged(
            f"Of {n.n_pairs} changes of the last layer from the residual's token to a third one {n.related.n} can be "
            f"judged by rule; in {percent(n.related)} of these the two tokens are related.",
            within(n.related, 0.19, 0.49) if n.related.n >= FEWEST_PAIRS else None,
        ),
        explain=explain_distant,
        rows=lambda n: (
            Row("examples in which the last layer composes", n.share),
            Row("of these, semantically distant from the residual", n.distant, 66, "Sec. 5.2, by hand"),
            Row("of these, related", n.related, 34, "Sec. 5.2, by hand"),
        ),
        origins=(Origin("compositions of the last layer", "66 of 100 distant, 34 related", SUMMARY),),
    ),
)


def last_layer_section(m: Measurements) -> Section:
    """Show compositions of the last layer, and how similar the new token is to the residual's token."""
    found: Compositions = compositions(m).judged
    chosen, n_pairs = found.chosen, len(found.chosen)
    tokens = {
        f"{name}_token": m.lm.token_strings(m.examples[name][-1][chosen].tolist()) if n_pairs else []
        for name in ("residual", "update", "output")
    }
    cells = {
        "prefix_text": [m.prefix_text(p, example=True) for p in m.positions[chosen].tolist()],
        **tokens,
        "wordnet_similarity": found.wordnet.tolist(),
        "embedding_cosine": found.cosine.tolist(),
        "judged": [
            "related" if r else "distant" if k else "unknown" for r, k in zip(found.related, found.known, strict=True)
        ],
    }
    return Section(
        "Compositions of the last layer",
        (
            f"These are {n_pairs} random examples in which the top token of the last layer's output is neither the "
            "residual's nor the update's. The paper's authors judged by hand whether the new token is related to the "
            "residual's. Here two tokens are related if their WordNet senses have a Lin similarity of at least "
            f"{format_setting(RELATED)} (both words are in WordNet in {int((~np.isnan(found.wordnet)).sum())} cases), "
            "or if their embeddings are closer than 99 % of random pairs of the same frequencies. They are distant if "
            "WordNet has both words and does not relate them, or if their embeddings are closer than fewer than 90 % "
            f"of such pairs. {n_pairs - int(found.known.sum())} pairs are undecided.",
        ),
        (exhibit("compositions", "Compositions of the last layer", cells, m.provenance, folded=True),),
    )


PARTS = (
    Part(refinement_section, REFINEMENT, "refinement_published", "Refinement: here and published"),
    Part(last_layer_section, LAST_LAYER, "last_layer_published", "Compositions of the last layer: here and published"),
)

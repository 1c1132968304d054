"""Section 3: keys capture input patterns.

What the triggers of a key have in common (Fig. 2, Table 1); how removing a token changes the coefficient (Fig. 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from unembed.document.exhibits import by_layer, exhibit, means, plain_mean, plain_median
from unembed.document.intervals import (
    Measured,
    difference_of,
    mean_of,
    paired_difference,
    rank_correlation,
    share_of,
)
from unembed.document.model import Exhibit, Reference, Section
from unembed.document.numbers import format_interval, percent, points
from unembed.reports.geva2021 import paper
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.patterns import CHANCE, FEWEST
from unembed.reports.geva2021.perturbation import KINDS
from unembed.reports.published import READ_OFF, SUMMARY, Origin
from unembed.reports.quantities import Numbers, Part, Quantity, Row, above, judged, once, within
from unembed.results import format_setting
from unembed.stream.massive_activations import MASSIVE

_PATTERNS = ("shallow", "both", "semantic", "none")


@once
def patterns(m: Measurements) -> Numbers:
    """Measure the shares of keys and of prefixes with a pattern, for sampled keys and for sets of random prefixes."""
    found, seed = m.patterns, m.seed
    keys = found["layer"] >= 0
    high, low = keys & (found["layer"] >= m.upper), keys & (found["layer"] < m.upper)
    number, covered = found["n_shallow"] + found["n_semantic"], 1 - found["none"]
    shallow, semantic = found["shallow"] + found["both"], found["semantic"] + found["both"]
    return Numbers(
        upper=m.upper,
        some=share_of(int((number[keys] > 0).sum()), int(keys.sum())),
        number=mean_of(number[keys], seed=seed),
        covered=mean_of(covered[keys], seed=seed, share=True),
        by_chance=mean_of(covered[~keys], seed=seed, share=True),
        shallow=[mean_of(shallow[rows], seed=seed, share=True) for rows in (low, high)],
        semantic=[mean_of(semantic[rows], seed=seed, share=True) for rows in (low, high)],
        semantic_rises=difference_of(semantic[high], semantic[low], seed=seed, share=True),
        shallow_falls=difference_of(shallow[low], shallow[high], seed=seed, share=True),
    )


PATTERNS: tuple[Quantity[Measurements], ...] = (
    Quantity(
        "every key",
        "For every key, at least one pattern was identified, 3.6 on average.",
        where="Sec. 3.2",
        what="keys with a pattern by rule, and patterns per key",
        published="100 % of 160 keys, 3.6 patterns",
        test="More than 90 % of the keys, and between half and twice the paper's number of patterns; exact binomial "
        "interval and bootstrap over keys.",
        measure=patterns,
        judge=lambda n: judged(
            f"{percent(n.some)} of {n.some.n} keys have a pattern by rule, {format_interval(n.number)} patterns on "
            "average.",
            above(n.some, 0.9),
            within(n.number, 1.8, 7.2),
        ),
        rows=lambda n: (
            Row("keys with at least one pattern", n.some, 100),
            Row("patterns per key", n.number, 3.6, unit="patterns"),
        ),
        origins=(Origin("patterns per key, keys with one", "3.6 on average, every key", SUMMARY),),
    ),
    Quantity(
        "prefixes in patterns",
        "The vast majority of trigger prefixes were associated with at least one pattern.",
        where="Sec. 3.2, Fig. 2",
        what="share of trigger prefixes in a pattern by rule",
        published="65 to 80 %, by people",
        test="Between 55 and 90 %, ten points around the published band because rules stand in for people, and above "
        "sets of random prefixes; bootstrap over keys.",
        measure=patterns,
        judge=lambda n: judged(
            f"{percent(n.covered)} of trigger prefixes are in a pattern by rule, {percent(n.by_chance)} of random "
            "ones.",
            within(n.covered, 0.55, 0.9),
            above(n.covered, n.by_chance.high),
        ),
        rows=lambda n: (
            Row("prefixes in at least one pattern", n.covered, source="65 to 80 %, by people (Sec. 3.2)"),
            Row("the same in sets of random prefixes", n.by_chance),
        ),
        references={"fig2_patterns": (Reference("in a pattern, published", (0.65,), (0.8,)),)},
        origins=(Origin("prefixes in a pattern", "65 to 80 %", SUMMARY),),
    ),
    Quantity(
        "shallow to semantic",
        "Lower layers are dominated by shallow patterns, upper layers by semantic ones.",
        where="Sec. 3.2, Fig. 2",
        what="prefixes in semantic and in shallow patterns, upper less lower layers",
        published="shallow in layers 1 to 9 of 16, semantic in 10 to 16",
        test="Semantic patterns gain and shallow ones lose, both beyond their intervals; bootstrap over keys.",
        measure=patterns,
        judge=lambda n: judged(
            f"From the layers below {n.upper} to layer {n.upper} and above, the share of prefixes in semantic patterns "
            f"changes by {points(n.semantic_rises)} and that of prefixes in shallow ones by "
            f"{points(_minus(n.shallow_falls))}.",
            above(n.semantic_rises, 0),
            above(n.shallow_falls, 0),
        ),
        rows=lambda n: (
            Row("prefixes in a shallow pattern, lower layers", n.shallow[0]),
            Row("prefixes in a shallow pattern, upper layers", n.shallow[1]),
            Row("prefixes in a semantic pattern, lower layers", n.semantic[0]),
            Row("prefixes in a semantic pattern, upper layers", n.semantic[1]),
        ),
        origins=(Origin("layers of shallow and of semantic patterns", "1 to 9, and 10 to 16", SUMMARY),),
    ),
)


def _minus(m: Measured) -> Measured:
    return Measured(-m.value, -m.high, -m.low, m.n)


def patterns_section(m: Measurements) -> Section:
    """Compare the patterns that rules find in the triggers of sampled keys with those in random prefixes."""
    series = {kind: kind if kind != "none" else "none found" for kind in _PATTERNS}
    shown, title = ("covered", *_PATTERNS), "Fig. 2: trigger prefixes by kind of pattern"
    return Section(
        "Keys capture input patterns",
        (
            f"Patterns are sought in {m.options.pattern_keys} random keys of each layer, among the {m.options.shown} "
            "prefixes on which a key has its highest coefficients. In the paper people found the patterns; here rules "
            f"do. A pattern is something that at least {FEWEST} of these prefixes share, and that as many random "
            f"prefixes would share with a probability of at most {format_setting(CHANCE)}. A shallow pattern is the "
            "last one to three tokens, or two to four tokens in a row. A semantic pattern is a WordNet class, of "
            "meanings or of named things, with at least two different words from the prefixes." + _triggers_left_out(m),
        ),
        (
            exhibit("patterns", "Patterns by layer", _patterns_by_layer(m, m.patterns), m.provenance, percent=shown),
            _examples(m),
            *_judged(m),
            *_kappas(m),
        ),
        (by_layer("fig2_patterns", title, "patterns", series, "prefixes", "stacked", y_range=(0, 1)),),
    )


def _patterns_by_layer(m: Measurements, found: Mapping[str, Any]) -> dict[str, list]:
    """Return columns by layer: the share of prefixes with each kind of pattern, and the number of patterns per key."""
    rows = [found["layer"] == layer for layer in range(m.n_layers)]
    return {
        "layer": list(range(m.n_layers)),
        "covered": means([1 - found["none"][at] for at in rows], m.seed),
        **{kind: [plain_mean(found[kind][at]) for at in rows] for kind in _PATTERNS},
        "patterns": means([(found["n_shallow"] + found["n_semantic"])[at] for at in rows], m.seed, share=False),
    }


def _keys(m: Measurements, found: Mapping[str, Any], chosen: np.ndarray) -> tuple[list, dict[str, list]]:
    """Return layer and key number of the chosen rows of `found`, and columns with the keys' names and patterns."""
    keys = list(zip(found["layer"][chosen].tolist(), found["index"][chosen].tolist(), strict=True))
    described = [d or "none" for d in found["described"][chosen].tolist()]
    return keys, {
        "key": [m.lm.memory_name(layer, *m.triggers.memory(layer, key)) for layer, key in keys],
        "patterns_text": described,
    }


def _examples(m: Measurements) -> Exhibit:
    """Show keys as in Table 1: a key, its patterns, and three of its triggers."""
    keys, cells = _keys(m, m.patterns, np.flatnonzero(m.patterns["layer"] >= 0))
    places = [m.triggers.positions[m.triggers.row(*key)][:3].tolist() for key in keys]
    cells["first_triggers_text"] = [" ‖ ".join(m.prefix_text(p)[-90:] for p in row if p >= 0) for row in places]
    title, note = "Sampled keys, their patterns and first triggers", "Counts of prefixes in parentheses."
    return exhibit("pattern_examples", title, cells, m.provenance, note, folded=True)


def _judged(m: Measurements) -> list[Exhibit]:
    """Show the patterns that a judge and the rules find in the same prefixes; empty without a judge."""
    found = m.judged
    if not len(found.get("layer", ())):
        return []
    by_rule = [plain_mean(1 - m.patterns["none"][m.patterns["layer"] == n]) for n in range(m.n_layers)]
    cells = _patterns_by_layer(m, found)
    cells = {"layer": cells.pop("layer"), "covered": cells.pop("covered"), "covered_by_rules": by_rule, **cells}
    _, of_keys = _keys(m, found, np.arange(len(found["layer"])))
    annotator = str(getattr(m.options.judge, "annotator", "the judge"))
    title, shares = f"Patterns by layer, as {annotator} finds them", ("covered", "covered_by_rules", *_PATTERNS)
    return [
        exhibit("patterns_judged", title, cells, m.provenance, percent=shares),
        exhibit("patterns_judged_keys", f"What {annotator} finds", of_keys, m.provenance, folded=True),
    ]


def _kappas(m: Measurements) -> list[Exhibit]:
    """Show how well the rules agree with people's labels in the index, and with a judge; empty without either."""
    compared = [found for found in (m.people, m.judged) if len(found.get("pair", ()))]
    if not compared:
        return []
    names = {"question_text": "question", "annotators_text": "pair", "items": "items", "cohens_kappa": "kappa"}
    cells = {column: [x for found in compared for x in found[name]] for column, name in names.items()}
    note = (
        "People: on the keys that they labelled in this index; a judge: on the keys sampled here. “rules” are those of "
        "this report, on the same prefixes."
    )
    return [exhibit("people", "Agreement of rules, people and judge", cells, m.provenance, note)]


@once
def shortened(m: Measurements) -> Numbers | None:
    """Average the change of a key's coefficient if a trigger loses its first, last, or a random token."""
    if not len(m.perturbed):
        return None
    layer, per_key, seed = m.perturbed[:, 0], _changes_by_key(m.changes), m.seed
    first, last, random = per_key.T
    found = [(plain_mean(last[layer == n]), plain_mean(first[layer == n])) for n in np.unique(layer)]
    by_layer = [of_last < of_first for of_last, of_first in found if not np.isnan(of_last - of_first)]
    return Numbers(
        first=mean_of(first, seed=seed),
        last=mean_of(last, seed=seed),
        random=mean_of(random, seed=seed),
        ends=[mean_of(last[layer == n], seed=seed) for n in (0, m.n_layers - 1)],
        lead=paired_difference(first, last, seed=seed),
        layers=int(sum(by_layer)),
        n_layers=len(by_layer),
        trend=rank_correlation(layer.astype(float), last, seed=seed),
    )


PERTURBATION: tuple[Quantity[Measurements], ...] = (
    Quantity(
        "the end matters",
        "Removing the last token has a stronger impact on the memory coefficient than removing the first.",
        where="Sec. 3.2, Fig. 3",
        what="relative change of the coefficient without the first and without the last token",
        published="about -10 to -15 % and -20 to -70 %, by layer (read off Fig. 3 by a third party)",
        test="The paired difference is above 0, and the last token matters more in most layers; bootstrap over keys.",
        measure=shortened,
        judge=lambda n: judged(
            f"Without the last token coefficients change by {percent(n.last)}, without the first by "
            f"{percent(n.first)}; the last matters more in {n.layers} of {n.n_layers} layers.",
            above(n.lead, 0),
            n.layers > n.n_layers / 2,
        ),
        rows=lambda n: (
            Row("first token removed", n.first, source="about −10 to −15 %, read off Fig. 3"),
            Row("random token removed", n.random, source="about −15 to −20 %, read off Fig. 3"),
        ),
        references={
            "fig3_perturbation": (
                Reference("first, published", (-0.15,), (-0.1,), series=0),
                Reference("last, published", (-0.7, -0.2), (-0.65, -0.2), paper.at(1, 16), series=1),
                Reference("random, published", (-0.2,), (-0.15,), series=2),
            )
        },
        origins=(
            Origin(
                "change without a token",
                "first −10 to −15 %, random −15 to −20 %, last −70 to −20 %",
                READ_OFF,
                "Fig. 3",
            ),
        ),
    ),
    Quantity(
        "upper layers are less shallow",
        "In upper layers removing the last token has less impact.",
        where="Sec. 3.2, Fig. 3",
        what="rank correlation of layer and relative change without the last token, over keys",
        published="from about -65 % in layer 1 to -20 % in layer 16 (read off Fig. 3 by a third party)",
        test="The correlation over all layers is above 0, not only the difference of the ends; bootstrap over keys.",
        measure=shortened,
        judge=lambda n: judged(
            "Between the layer of a key and the change of its coefficient without the last token the rank correlation "
            f"is {format_interval(n.trend)}.",
            above(n.trend, 0),
        ),
        rows=lambda n: (
            Row("last token removed, first layer", n.ends[0], source="about −65 to −70 %"),
            Row("last token removed, last layer", n.ends[1], source="about −20 %, read off Fig. 3"),
        ),
    ),
)


def _changes_by_key(changes: np.ndarray) -> np.ndarray:
    """Average the changes (key, trigger, kind) over triggers; returns (key, kind)."""
    return np.array([[plain_mean(row) for row in key.T] for key in changes]).reshape(-1, len(KINDS))


def perturbation_section(m: Measurements) -> Section:
    """Show how the coefficient changes if a trigger loses a token: mean and median by layer and kind of token."""
    n_keys, n_triggers = m.changes.shape[:2]
    per_key = _changes_by_key(m.changes)
    rows = [m.perturbed[:, 0] == n for n in range(m.n_layers)]
    cells: dict[str, list] = {"layer": list(range(m.n_layers))}
    for i, kind in enumerate(KINDS):
        cells[kind] = means([per_key[at, i] for at in rows], m.seed, share=False)
        cells[f"median_{kind}"] = [plain_median(m.changes[at][..., i]) for at in rows]
    shares = (*KINDS, *(f"median_{kind}" for kind in KINDS))
    series, drawn = {kind: f"{kind} token removed" for kind in KINDS}, "Fig. 3: relative change of the coefficient"
    title = "Relative change of the coefficient by layer"
    return Section(
        "Shortened triggers",
        (
            f"For {m.options.perturbed_keys} random keys of each layer ({n_keys} in all; the paper took 100 of each "
            f"layer), up to {n_triggers} triggers are read again without their first, last, or one random token. The "
            "numbers are relative changes of the coefficient, averaged over the triggers of a key and then over keys; "
            "the paper does not state how it averaged. Triggers of one token are left out." + _massive(m),
        ),
        (exhibit("perturbation", title, cells, m.provenance, percent=shares),),
        (by_layer("fig3_perturbation", drawn, "perturbation", series, "change"),),
    )


def _triggers_left_out(m: Measurements) -> str:
    """Return a sentence on the triggers left out because of massive activations; "" if there are none."""
    if not m.triggers_left_out:
        return ""
    return (
        f" {m.triggers_left_out:,} triggers of all keys end at a position with massive activations, where the stream "
        f"is over {MASSIVE} times as long as the layer's median. They are left out here and in every other section; "
        "random prefixes do not end there either."
    )


def _massive(m: Measurements) -> str:
    """Return a sentence on the shortened triggers left out because of massive activations; "" if there are none."""
    if not m.shortened_left_out:
        return ""
    return (
        f" So are {m.shortened_left_out:,} shortened triggers that end at a position with massive activations, where "
        f"the stream is over {MASSIVE} times as long as the layer's median."
    )


PARTS = (
    Part(
        patterns_section,
        PATTERNS,
        "patterns_published",
        "Patterns: here and published",
        "Sets of random prefixes show what the rules find where there is no pattern.",
    ),
    Part(perturbation_section, PERTURBATION, "perturbation_published", "Shortened triggers: here and published"),
)

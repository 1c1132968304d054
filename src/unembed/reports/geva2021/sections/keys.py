"""Section "Keys capture input patterns": Fig. 2, examples in the form of Table 1, Fig. 3."""

from __future__ import annotations

import numpy as np

from unembed.document.intervals import columns, mean_of, share_of
from unembed.document.model import Exhibit, Figure, Finding, Section
from unembed.reports.geva2021 import published
from unembed.reports.geva2021.formatting import (
    ComparisonTable,
    first_upper,
    means,
    prefix_text,
    provenance_of,
)
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.patterns import CHANCE, FEWEST
from unembed.reports.geva2021.perturbation import KINDS
from unembed.results import Table

_KINDS = ("shallow", "both", "semantic", "none")


def patterns_section(m: Measurements, findings: tuple[Finding, ...]) -> Section:
    """Patterns by rule in the triggers of sampled keys, compared with random prefixes."""
    found, provenance, n_layers = m.patterns, provenance_of(m), m.triggers.n_layers
    keys, random = found["layer"] >= 0, found["layer"] < 0
    covered = 1 - found["none"]
    by_layer = [found["layer"] == layer for layer in range(n_layers)]
    table = {
        "layer": list(range(n_layers)),
        **columns("covered", means([covered[at] for at in by_layer], m.seed)),
        **{kind: [float(found[kind][at].mean()) if at.any() else float("nan") for at in by_layer] for kind in _KINDS},
        **columns(
            "patterns", means([(found["n_shallow"] + found["n_semantic"])[at] for at in by_layer], m.seed, share=False)
        ),
    }
    upper = first_upper(n_layers)
    is_upper, is_lower = keys & (found["layer"] >= upper), keys & (found["layer"] < upper)
    semantic = found["semantic"] + found["both"]
    shallow = found["shallow"] + found["both"]
    number = found["n_shallow"] + found["n_semantic"]
    whole, null = mean_of(covered[keys], seed=m.seed, share=True), mean_of(covered[random], seed=m.seed, share=True)
    some = share_of(int((number[keys] > 0).sum()), int(keys.sum()))
    comparison = ComparisonTable("patterns_published", "Patterns: here and published")
    comparison.add("prefixes in at least one pattern", whole, None, "65 to 80 %, by people (Sec. 3.2)")
    comparison.add("the same in sets of random prefixes", null)
    comparison.add("keys with at least one pattern", some, 100, "Sec. 3.2")
    comparison.add("patterns per key", mean_of(number[keys], seed=m.seed), 3.6, "Sec. 3.2", unit="patterns")
    comparison.add("prefixes in a shallow pattern, lower layers", mean_of(shallow[is_lower], seed=m.seed, share=True))
    comparison.add("prefixes in a shallow pattern, upper layers", mean_of(shallow[is_upper], seed=m.seed, share=True))
    comparison.add("prefixes in a semantic pattern, lower layers", mean_of(semantic[is_lower], seed=m.seed, share=True))
    comparison.add("prefixes in a semantic pattern, upper layers", mean_of(semantic[is_upper], seed=m.seed, share=True))
    return Section(
        "Keys capture input patterns",
        (
            f"Of each layer {m.options.pattern_keys} random keys, and of each key the {m.options.shown} prefixes with "
            "the highest coefficient. The paper used people; here rules look for patterns: a pattern is what at least "
            f"{FEWEST} prefixes share and random prefixes would share as often with a probability of at most "
            f"{CHANCE:g}. Shallow: the last one to three tokens, or two to four tokens in a row. Semantic: a WordNet "
            "class of meaning, or of named things, for which at least two different words stand.",
        ),
        (
            *comparison.exhibits(
                provenance, "The same rules on sets of random prefixes show what they find where there is no pattern."
            ),
            Exhibit("patterns", Table("Patterns by layer", table, provenance), percent=("covered", *_KINDS)),
            _examples(m),
            *_judged(m),
            *_kappas(m),
        ),
        (
            Figure(
                "fig2_patterns",
                "Fig. 2: trigger prefixes by kind of pattern",
                "stacked",
                "patterns",
                "layer",
                _KINDS,
                ("shallow", "both", "semantic", "none found"),
                "layer",
                "prefixes",
                percent=True,
                y_range=(0, 1),
                references=(published.COVERED,),
            ),
        ),
        findings,
    )


def _examples(m: Measurements) -> Exhibit:
    """Table 1's form: a key, its patterns, three of its triggers."""
    found = m.patterns
    chosen = np.flatnonzero(found["layer"] >= 0)
    triggers = []
    for layer, index in zip(found["layer"][chosen].tolist(), found["index"][chosen].tolist(), strict=True):
        places = m.triggers.positions[m.triggers.row(layer, index)][:3]
        triggers.append(" ‖ ".join(prefix_text(m, p)[-90:] for p in places.tolist() if p >= 0))
    columns_ = {
        "key": _names(m, found["layer"][chosen], found["index"][chosen]),
        "patterns_text": [d or "none" for d in found["described"][chosen].tolist()],
        "first_triggers_text": triggers,
    }
    table = Table("Sampled keys, their patterns and first triggers", columns_, provenance_of(m))
    return Exhibit("pattern_examples", table, "Counts of prefixes in parentheses.", folded=True)


def _names(m: Measurements, layers: np.ndarray, indices: np.ndarray) -> list[str]:
    return [m.lm.memory_name(n, i) for n, i in zip(layers.tolist(), indices.tolist(), strict=True)]


def _judged(m: Measurements) -> list[Exhibit]:
    """What a judge finds in the same prefixes, next to the rules, if one was given."""
    found = m.judged
    if not len(found.get("layer", ())):
        return []
    rows = [found["layer"] == n for n in range(m.triggers.n_layers)]
    by_rule = 1 - m.patterns["none"]
    columns_ = {
        "layer": list(range(len(rows))),
        **columns("covered", means([1 - found["none"][at] for at in rows], m.seed)),
        "covered_by_rules": [_mean(by_rule[m.patterns["layer"] == n]) for n in range(len(rows))],
        **{kind: [_mean(found[kind][at]) for at in rows] for kind in _KINDS},
        **columns(
            "patterns", means([(found["n_shallow"] + found["n_semantic"])[at] for at in rows], m.seed, share=False)
        ),
    }
    patterns_found = {
        "key": _names(m, found["layer"], found["index"]),
        "patterns_text": [d or "none" for d in found["described"].tolist()],
    }
    annotator = str(getattr(m.options.judge, "annotator", "the judge"))
    shares = Table(f"Patterns by layer, as {annotator} finds them", columns_, provenance_of(m))
    return [
        Exhibit("patterns_judged", shares, percent=("covered", "covered_by_rules", *_KINDS)),
        Exhibit(
            "patterns_judged_keys", Table(f"What {annotator} finds", patterns_found, provenance_of(m)), folded=True
        ),
    ]


def _kappas(m: Measurements) -> list[Exhibit]:
    """Agreement of the rules with people, where an index with labels was given, and with a judge."""
    compared = [found for found in (m.people, m.judged) if len(found.get("pair", ()))]
    if not compared:
        return []
    columns_ = {
        "question_text": [q for found in compared for q in found["question"].tolist()],
        "annotators_text": [p for found in compared for p in found["pair"].tolist()],
        "items": [int(n) for found in compared for n in found["items"]],
        "cohens_kappa": [float(k) for found in compared for k in found["kappa"]],
    }
    note = (
        "People: on the keys that they labelled in this index; a judge: on the keys sampled here. “rules” are those of "
        "this report, on the same prefixes."
    )
    return [Exhibit("people", Table("Agreement of rules, people and judge", columns_, provenance_of(m)), note)]


def changes_by_key(changes: np.ndarray) -> np.ndarray:
    """The mean change of each key over its triggers: (key, kind)."""
    return np.array([[_mean(row) for row in key.T] for key in changes]).reshape(-1, len(KINDS))


def perturbation_columns(m: Measurements, changes: np.ndarray) -> dict[str, list]:
    """Mean and median change of each layer, by kind; `changes` are (key, trigger, kind) of the perturbed keys."""
    per_key = changes_by_key(changes)
    rows = [m.perturbed[:, 0] == n for n in range(m.triggers.n_layers)]
    table: dict[str, list] = {"layer": list(range(m.triggers.n_layers))}
    for i, kind in enumerate(KINDS):
        table |= columns(kind, means([per_key[at, i] for at in rows], m.seed, share=False))
        table[f"median_{kind}"] = [_median(changes[at][..., i]) for at in rows]
    return table


def perturbation_section(m: Measurements, findings: tuple[Finding, ...]) -> Section:
    """What shortening a trigger does to the coefficient."""
    n_layers, provenance = m.triggers.n_layers, provenance_of(m)
    layer, per_key = m.perturbed[:, 0], changes_by_key(m.changes)
    table = perturbation_columns(m, m.changes)
    first, random = (mean_of(per_key[:, i], seed=m.seed) for i in (0, 2))
    comparison = ComparisonTable("perturbation_published", "Shortened triggers: here and published")
    comparison.add("first token removed", first, None, "about −10 to −15 %, read off Fig. 3")
    comparison.add("random token removed", random, None, "about −15 to −20 %, read off Fig. 3")
    comparison.add(
        "last token removed, first layer", mean_of(per_key[layer == 0, 1], seed=m.seed), None, "about −65 to −70 %"
    )
    last_layer = mean_of(per_key[layer == n_layers - 1, 1], seed=m.seed)
    comparison.add("last token removed, last layer", last_layer, None, "about −20 %, read off Fig. 3")
    n_keys, n_triggers = m.changes.shape[:2]
    return Section(
        "Shortened triggers",
        (
            f"Of each layer {m.options.perturbed_keys} random keys ({n_keys} in all; the paper took 100 of each "
            f"layer), and of each key up to {n_triggers} triggers, without their first, last, or one random token. "
            "Shown is the relative change of the coefficient, averaged over the triggers of a key and then over keys; "
            "the paper does not say how it averaged. Triggers of one token are left out.",
        ),
        (
            *comparison.exhibits(provenance),
            Exhibit(
                "perturbation",
                Table("Relative change of the coefficient by layer", table, provenance),
                percent=(*KINDS, *(f"median_{kind}" for kind in KINDS)),
            ),
        ),
        (
            Figure(
                "fig3_perturbation",
                "Fig. 3: relative change of the coefficient",
                "line",
                "perturbation",
                "layer",
                KINDS,
                ("first token removed", "last token removed", "random token removed"),
                "layer",
                "change",
                percent=True,
                references=published.PERTURBATION,
            ),
        ),
        findings,
    )


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _median(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")

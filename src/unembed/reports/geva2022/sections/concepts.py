"""Section 4 of the paper: do sub-updates promote concepts? Tab. 2 and Fig. 2, with automatic concepts."""

from __future__ import annotations

import numpy as np

from unembed.concepts.annotation.agreement import token_agreement
from unembed.concepts.annotation.files import KINDS, Annotation, summary
from unembed.concepts.annotation.from_values import automatic
from unembed.concepts.token_classes import COUNTED
from unembed.concepts.value_concepts import TOP, VectorConcepts
from unembed.document.intervals import columns, mean_of
from unembed.document.model import Exhibit, Figure, Finding, Section
from unembed.lens import comparable_basis
from unembed.reports.geva2022 import published
from unembed.reports.geva2022.measurements import NEGATED, RANDOM, UPDATES, VALUES, Measurements
from unembed.results import Provenance, Table

WITH_STOP_WORDS = (*COUNTED, "stopwords")


def section(m: Measurements, findings: tuple[Finding, ...]) -> Section:
    """Tables, figures and findings; with the concepts that a judge sees in the same values, where there is one."""
    found, provenance = m.concepts, m.provenance
    table, by_layer = _table_2(m), _by_layer(m)
    text = (
        f"For each vector the {TOP} tokens it promotes most ({_reading(m)}) are searched for classes that at least "
        "four share and that chance does not explain: WordNet classes, grammar, names. The paper's experts named "
        "concepts by hand; these are found by a program, so shares compare with each other, not with the paper's "
        "percentages.",
        "`random vectors` come from a normal with the mean and deviation of each layer's values. `updates` are whole "
        "FFN outputs at the ends of random prefixes. Where a norm follows the FFN, values are read behind its gain; "
        "in gated layers coefficients take both signs: `sub-updates` are the values as they are, and those negated, "
        "whose top tokens are the ones that the values suppress most, have a row of their own.",
    )
    figures = (
        Figure(
            "fig2",
            "Share of the top tokens that belong to a concept, by layer and kind",
            "bar",
            "fig2",
            "layer",
            ("semantic", "syntactic", "names"),
            x_label="layer",
            y_label="share of top tokens",
            percent=True,
            references=published.FIG_2,
        ),
        Figure(
            "coverage_by_layer",
            "Sub-updates, random vectors and updates, by layer",
            "line",
            "fig2",
            "layer",
            ("in_a_concept", "random_vectors", "updates", *(("negated",) if NEGATED in found else ())),
            ("sub-updates", "random vectors", "updates", *((NEGATED,) if NEGATED in found else ())),
            x_label="layer",
            y_label="share of top tokens",
            percent=True,
            references=published.COVERAGE_LINES,
        ),
    )
    exhibits = (
        Exhibit("tab2", table, "Published numbers are GPT2's, with WikiLM's next to them.", _PERCENT),
        Exhibit("fig2", by_layer, "", _PERCENT_BY_LAYER),
        *_judged(found[VALUES], m.judged, provenance),
        Exhibit("concepts", found[VALUES].to_table(), "Every concept of the sampled values.", (), True, (("score",),)),
    )
    return Section("Concepts in the vocabulary (Sec. 4)", text, exhibits, figures, findings)


def _reading(m: Measurements) -> str:
    final = comparable_basis(m.lm) == "final"
    return "read by the adaptive softmax's log-probabilities" if final else "raw reading"


def _judged(found: VectorConcepts, judge: Annotation | None, provenance: Provenance) -> list[Exhibit]:
    if judge is None:
        return []
    both = [automatic(found), judge]
    table = summary(both)
    shares = Table(f"Concepts in the same values, by the program and by {judge.annotator}", table.columns, provenance)
    return [
        Exhibit("judged", shares, percent=("in_a_pattern", *KINDS)),
        Exhibit("judge_agreement", token_agreement(both, provenance), "Token by token."),
    ]


_PERCENT_BY_LAYER = ("semantic", "syntactic", "names", "in_a_concept", "random_vectors", "updates", "negated")
_PERCENT = ("in_a_concept", "with_stopwords", "semantic", "syntactic", "names", "in_a_concept_wikilm")


def _table_2(m: Measurements) -> Table:
    found, names = m.concepts, list(m.concepts)
    cells: dict[str, list] = {"vectors": names}
    shown = {"in_a_concept": COUNTED, "with_stopwords": WITH_STOP_WORDS, **{k: (k,) for k in COUNTED}}
    printed = {"in_a_concept": published.COVERAGE, "with_stopwords": published.COVERAGE_WITH_STOP_WORDS}
    for column, kinds in shown.items():
        numbers = [
            mean_of(
                found[n].coverage(kinds),
                units=m.update_prefixes if n == UPDATES else None,
                seed=m.seed,
                published=printed.get(column, {}).get(n, {}).get("gpt2"),
                share=True,
            )
            for n in names
        ]
        cells |= columns(column, numbers)
    cells["in_a_concept_wikilm"] = [published.COVERAGE.get(n, {}).get("wikilm") for n in names]
    cells |= columns(
        "concepts",
        [mean_of(found[n].number(), units=m.update_prefixes if n == UPDATES else None, seed=m.seed) for n in names],
    )
    return Table("Share of the top 30 tokens that belong to a concept (Tab. 2)", cells, m.provenance)


def _by_layer(m: Measurements) -> Table:
    found, values = m.concepts, m.concepts[VALUES]
    layers = sorted({n for n in values.layers if n is not None})
    cells: dict[str, list] = {"layer": layers}

    def over_layers(concepts: VectorConcepts, kinds: tuple[str, ...]) -> list:
        share, at = concepts.coverage(kinds), np.array(concepts.layers)
        return [mean_of(share[at == n], seed=m.seed, share=True) for n in layers]

    for kind in COUNTED:
        cells |= columns(kind, over_layers(values, (kind,)))
    cells |= columns("in_a_concept", over_layers(values, COUNTED))
    cells |= columns("random_vectors", over_layers(found[RANDOM], COUNTED))
    cells |= columns("updates", over_layers(found[UPDATES], COUNTED))
    if NEGATED in found:
        cells |= columns("negated", over_layers(found[NEGATED], COUNTED))
    return Table("Concepts by layer and kind (Fig. 2)", cells, m.provenance)

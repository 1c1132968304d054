"""Section 4: do sub-updates promote concepts? The top tokens of vectors are searched for concepts (Tab. 2, Fig. 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from unembed.annotation.agreement import token_agreement
from unembed.annotation.files import KINDS, summary
from unembed.annotation.from_values import automatic
from unembed.concepts.token_classes import COUNTED
from unembed.concepts.value_concepts import TOP, VectorConcepts
from unembed.document.exhibits import by_layer, exhibit
from unembed.document.intervals import Measured, difference_of, mean_of, paired_difference, ratio_of
from unembed.document.model import Exhibit, Reference, Section
from unembed.document.numbers import format_interval, percent, points
from unembed.lens import comparable_basis
from unembed.reports.geva2022.measurements import NEGATED, RANDOM, UPDATES, VALUES, Measurements
from unembed.reports.geva2022.published import COVERAGE, COVERAGE_WITH_STOP_WORDS, GPT2_VOCAB
from unembed.reports.published import PRINTED, Origin
from unembed.reports.quantities import Numbers, Part, Quantity, above, below, judged, least_of, most_of, once
from unembed.results import format_percent

WITH_STOP_WORDS = (*COUNTED, "stopwords")
_GROUPS = {"in_a_concept": COUNTED, "with_stopwords": WITH_STOP_WORDS, **{kind: (kind,) for kind in COUNTED}}
"""Columns of Tab. 2, each with the kinds of concepts that count."""


BY_LENS = ", by the lens"
"""Suffix of the names of vectors that the model's fitted lens decodes."""


@once
def readings(m: Measurements) -> dict[str, VectorConcepts]:
    """Return the concepts of every kind of vector, and of the same vectors decoded by the fitted lens, if any."""
    return {**m.concepts, **{name + BY_LENS: found for name, found in (m.concepts_by_lens or {}).items()}}


def _units(m: Measurements, vectors: str) -> np.ndarray | None:
    """Return the number of each vector's prefix if the vectors are FFN updates; None for other vectors.

    Confidence intervals resample these units. Updates of one prefix are not independent, so they are drawn together;
    other vectors are drawn one by one.
    """
    return m.update_prefixes if vectors.removesuffix(BY_LENS) == UPDATES else None


@once
def shares(m: Measurements) -> dict[str, dict[str, Measured]]:
    """Return the share of top tokens that are in a concept, by kind of vector and by column of Tab. 2."""
    return {
        name: {
            column: mean_of(found.coverage(kinds), units=_units(m, name), seed=m.seed, share=True)
            for column, kinds in _GROUPS.items()
        }
        for name, found in readings(m).items()
    }


@once
def numbers(m: Measurements) -> dict[str, Measured]:
    """Return the mean number of concepts per vector, by kind of vector."""
    return {
        name: mean_of(found.number(), units=_units(m, name), seed=m.seed, share=True)
        for name, found in readings(m).items()
    }


@once
def coverage(m: Measurements) -> Numbers:
    """Measure the share of top tokens that are in a concept, for value vectors, random vectors and updates."""
    values, random, updates = (m.concepts[name].coverage(COUNTED) for name in (VALUES, RANDOM, UPDATES))
    lensed = m.concepts_by_lens
    return Numbers(
        by_lens=None if lensed is None else _by_lens(m, lensed),
        values=shares(m)[VALUES]["in_a_concept"],
        random=shares(m)[RANDOM]["in_a_concept"],
        updates=shares(m)[UPDATES]["in_a_concept"],
        against_random=ratio_of(values, random, seed=m.seed, share=True),
        updates_against_values=ratio_of(updates, values, units_a=m.update_prefixes, seed=m.seed, share=True),
    )


def _by_lens(m: Measurements, lensed: Mapping[str, VectorConcepts]) -> Numbers:
    """Measure the share of top tokens in a concept, for value vectors and random vectors decoded by the fitted lens."""
    values, random = (lensed[name].coverage(COUNTED) for name in (VALUES, RANDOM))
    return Numbers(
        values=shares(m)[VALUES + BY_LENS]["in_a_concept"],
        random=shares(m)[RANDOM + BY_LENS]["in_a_concept"],
        ratio=ratio_of(values, random, seed=m.seed, share=True),
    )


@once
def stop_words(m: Measurements) -> Numbers:
    """Measure how much stop words add to the share of top tokens in concepts, for updates and for value vectors."""
    values, updates = (
        m.concepts[name].coverage(WITH_STOP_WORDS) - m.concepts[name].coverage(COUNTED) for name in (VALUES, UPDATES)
    )
    return Numbers(
        in_updates=mean_of(updates, units=m.update_prefixes, seed=m.seed, share=True),
        in_values=mean_of(values, seed=m.seed, share=True),
        difference=difference_of(updates, values, units_a=m.update_prefixes, seed=m.seed, share=True),
    )


@once
def number_of_concepts(m: Measurements) -> Numbers:
    """Measure the mean number of concepts per value vector and per random vector."""
    values, random = (m.concepts[name].number().astype(np.float64) for name in (VALUES, RANDOM))
    return Numbers(
        values=numbers(m)[VALUES],
        random=numbers(m)[RANDOM],
        difference=difference_of(values, random, seed=m.seed, share=True),
    )


def _over_layers(m: Measurements, vectors: str, kinds: Sequence[str]) -> list[Measured]:
    found = readings(m)[vectors]
    share, at = found.coverage(tuple(kinds)), np.array(found.layers)
    return [mean_of(share[at == n], seed=m.seed, share=True) for n in range(m.lm.n_layers)]


@once
def coverage_by_layer(m: Measurements) -> Numbers:
    """Measure the share of top tokens of value vectors that are in a concept, by layer."""
    return Numbers(layers=_over_layers(m, VALUES, COUNTED))


@once
def semantic(m: Measurements) -> Numbers:
    """Measure the share of top tokens in semantic concepts, for value vectors and for random vectors."""
    values, random = (m.concepts[name].coverage(("semantic",)) for name in (VALUES, RANDOM))
    other = m.concepts[VALUES].coverage(tuple(kind for kind in COUNTED if kind != "semantic"))
    return Numbers(
        semantic=shares(m)[VALUES]["semantic"],
        other=mean_of(other, seed=m.seed, share=True),
        difference=paired_difference(values, other, seed=m.seed),
        random=shares(m)[RANDOM]["semantic"],
        random_against_values=ratio_of(random, values, seed=m.seed, share=True),
    )


@once
def last_updates(m: Measurements) -> Numbers | None:
    """Compare the share of top tokens in a concept between updates of the last two layers and of the earlier layers."""
    share, at = m.concepts[UPDATES].coverage(COUNTED), np.array(m.concepts[UPDATES].layers)
    last = at >= m.lm.n_layers - 2
    if last.all():
        return None
    late, early = ((share[rows], m.update_prefixes[rows]) for rows in (last, ~last))
    return Numbers(
        last=mean_of(late[0], units=late[1], seed=m.seed, share=True),
        earlier=mean_of(early[0], units=early[1], seed=m.seed, share=True),
        ratio=ratio_of(late[0], early[0], units_a=late[1], units_b=early[1], seed=m.seed, share=True),
    )


def explain_concepts(m: Measurements) -> str:
    """State how concepts are found here, and how many more tokens are in one if the fitted lens decodes the values."""
    here = (
        f"Concepts are found by a program, not by people, among {TOP} of {m.lm.d_vocab:,} tokens "
        f"({format_percent(TOP / m.lm.d_vocab)} of the vocabulary; {format_percent(TOP / GPT2_VOCAB)} in GPT2)"
    )
    if m.concepts_by_lens is None:
        return f"{here}, of a model with {m.lm.n_layers} layers of {m.lm.memories_a_layer} values."
    raw, lensed = (shares(m)[name] for name in (VALUES, VALUES + BY_LENS))
    return (
        f"{here}. Of the top tokens of values {format_percent(raw['in_a_concept'].value)} belong to a concept "
        f"({format_percent(raw['semantic'].value)} to a semantic one); read by the fitted lens, "
        f"{format_percent(lensed['in_a_concept'].value)} do ({format_percent(lensed['semantic'].value)})."
    )


def explain_stop_words(m: Measurements) -> str:
    """State which share of the updates' top tokens is in a concept, and what stop words add with the fitted lens."""
    here = (
        f"With stop words, {format_percent(shares(m)[UPDATES]['with_stopwords'].value)} of the top tokens of updates "
        f"are in a concept, in the paper {format_percent(COVERAGE_WITH_STOP_WORDS['updates']['gpt2'])} (GPT2)."
    )
    if m.concepts_by_lens is None:
        return here
    updates, values = (format_percent(_added(m.concepts_by_lens[name])) for name in (UPDATES, VALUES))
    return (
        f"{here} Read by the fitted lens, stop words and punctuation add {updates} of the top tokens of updates and "
        f"{values} of those of values."
    )


def _added(found: VectorConcepts) -> float:
    """Return by how much the share of top tokens in concepts grows if stop words and punctuation count as concepts."""
    return float((found.coverage(WITH_STOP_WORDS) - found.coverage(COUNTED)).mean())


def _all_inside(layers: Sequence[Measured], low: float, high: float) -> bool | None:
    """Return whether every layer's value lies between `low` and `high`.

    False if some layer's whole confidence interval lies outside. None if no whole interval, but some value, does.
    """
    if any(x.high < low or x.low > high for x in layers):
        return False
    return True if all(low <= x.value <= high for x in layers) else None


def _sentence_by_lens(n: Numbers | None) -> str:
    return (
        ""
        if n is None
        else f" Read by the fitted lens, {percent(n.values)} of those of values and {percent(n.random)} of those of "
        f"random vectors do: {format_interval(n.ratio)} times as many."
    )


QUANTITIES: tuple[Quantity[Measurements], ...] = (
    Quantity(
        "values against random",
        "A substantially higher portion of top tokens were associated with a concept in value vectors than in random "
        "ones.",
        where="Sec. 4.1, Tab. 2",
        what="share of the 30 top tokens in a concept, values over random vectors",
        published="36.7 % against 16 % in GPT2, 55.1 % against 22.7 % in WikiLM: 2.3 and 2.4 times as many",
        test="The ratio is above 1.5, midway between no difference and the paper's ratios on a logarithmic scale; "
        "bootstrap over vectors.",
        measure=coverage,
        judge=lambda n: judged(
            f"{percent(n.values)} of the top tokens of values belong to a concept, {percent(n.random)} of those of "
            f"random vectors: {format_interval(n.against_random)} times as many.{_sentence_by_lens(n.by_lens)}",
            above(n.against_random, 1.5),
        ),
        explain=explain_concepts,
        references={
            "coverage_by_layer": tuple(
                Reference(f"{name}, GPT2 (published)", (by_model["gpt2"],), series=i)
                for i, (name, by_model) in enumerate(COVERAGE.items())
            )
        },
        origins=(
            Origin(
                "share of top tokens in a concept",
                "36.7, 16, 11.8 % (GPT2); 55.1, 22.7, 19.7 % (WikiLM)",
                PRINTED,
                "Tab. 2",
            ),
        ),
    ),
    Quantity(
        "updates against values",
        "Without stop words, projections of whole updates have a considerably lower token coverage than those of "
        "sub-updates.",
        where="Sec. 4.1, Tab. 2",
        what="share of the 30 top tokens in a concept, updates over values",
        published="11.8 % against 36.7 % in GPT2, 19.7 % against 55.1 % in WikiLM: 0.32 and 0.36 times as many",
        test="The ratio is below 2/3, which is nearer to no difference than to the paper's ratios; bootstrap over "
        "values and over the prefixes of updates.",
        measure=coverage,
        judge=lambda n: judged(
            f"{percent(n.updates)} of the top tokens of whole updates belong to a concept, {percent(n.values)} of "
            f"those of values: {format_interval(n.updates_against_values)} times as many.",
            below(n.updates_against_values, 2 / 3),
        ),
        explain=explain_concepts,
    ),
    Quantity(
        "stop words in updates",
        "For a large part of the tokens of updates the concept was stop words and punctuation.",
        where="Sec. 4.1, Tab. 2",
        what="share of top tokens that stop words add, updates less values",
        published="34.2 points of updates in GPT2 and 19.7 in WikiLM, 0.3 and 0 points of values",
        test="The difference is above 5 points, a quarter of the smaller published one; bootstrap over values and over "
        "the prefixes of updates.",
        measure=stop_words,
        judge=lambda n: judged(
            f"Stop words and punctuation add {percent(n.in_updates)} of the top tokens of updates and "
            f"{percent(n.in_values)} of those of values, a difference of {points(n.difference)}.",
            above(n.difference, 0.05),
        ),
        explain=explain_stop_words,
        origins=(Origin("the same with stop words", "37, 46 % (GPT2); 55.1, 39.4 % (WikiLM)", PRINTED, "Tab. 2"),),
    ),
    Quantity(
        "number of concepts",
        "Value vectors hold more than one concept on average, random vectors about half a one.",
        where="Sec. 4.1",
        what="concepts per vector",
        published="more than 1 in values, about 0.5 in random vectors (the paper's words)",
        test="Values hold more than 1 and more than random vectors; bootstrap over vectors.",
        measure=number_of_concepts,
        judge=lambda n: judged(
            f"{format_interval(n.values)} concepts per value, {format_interval(n.random)} per random vector.",
            above(n.values, 1),
            above(n.difference, 0),
        ),
        explain=explain_concepts,
    ),
    Quantity(
        "coverage of every layer",
        "In both models and across all layers, a substantial portion of the top tokens were associated with concepts.",
        where="Sec. 4.2, Fig. 2",
        what="share of the 30 top tokens of values in a concept, by layer",
        published="40 to 70 % in WikiLM, 20 to 65 % in GPT2",
        test="Every layer's share lies between 20 and 70 %, the range of both models; a layer whose interval lies "
        "outside disagrees.",
        measure=coverage_by_layer,
        judge=lambda n: judged(
            f"By layer between {percent(least_of(n.layers))} and {percent(most_of(n.layers))} of the top tokens of "
            "values belong to a concept.",
            _all_inside(n.layers, 0.2, 0.7),
        ),
        explain=explain_concepts,
        references={
            "fig2": (
                Reference("in a concept, WikiLM (published)", (0.4,), (0.7,)),
                Reference("in a concept, GPT2 (published)", (0.2,), (0.65,)),
            )
        },
        origins=(
            Origin("share in a concept, by layer", "20 to 65 % (GPT2), 40 to 70 % (WikiLM)", PRINTED, "Sec. 4.2"),
        ),
    ),
    Quantity(
        "mostly semantic",
        "Most of the concepts were classified as semantic.",
        where="Sec. 4.2, Fig. 2",
        what="share of top tokens of values in semantic concepts less that in other ones",
        published="most of 36.7 % (GPT2: 24.9 %) and of 55.1 % (WikiLM)",
        test="The difference is above 0 and semantic concepts hold more than 5 % of the tokens, a fifth of GPT2's "
        "24.9 %, so that chance finds do not count.",
        measure=semantic,
        judge=lambda n: judged(
            f"{percent(n.semantic)} of the top tokens of values are in semantic concepts, {percent(n.other)} in "
            "syntactic concepts or names.",
            above(n.difference, 0),
            above(n.semantic, 0.05),
        ),
        explain=explain_concepts,
    ),
    Quantity(
        "random vectors are not semantic",
        "Hardly any tokens of random vectors were marked as semantic concepts.",
        where="Sec. 4.1",
        what="share of top tokens in semantic concepts, random vectors over values",
        published="none in WikiLM; GPT2's share is not in the text at hand",
        test="The ratio is below 1/2; the paper's is 0 in WikiLM. Bootstrap over vectors.",
        measure=semantic,
        judge=lambda n: judged(
            f"{percent(n.random)} of the top tokens of random vectors are in semantic concepts, "
            f"{percent(n.semantic)} of those of values.",
            below(n.random_against_values, 0.5),
        ),
    ),
    Quantity(
        "last updates",
        "There are very few concepts in the updates of the last two layers of WikiLM.",
        where="Sec. 4.1",
        what="share of top tokens in a concept, updates of the last two layers over earlier ones",
        published="very few in the last two layers, 19.7 % over all layers (WikiLM)",
        test="The ratio is below 1/2 and the share itself below 10 %, half of WikiLM's average; bootstrap over "
        "prefixes.",
        measure=last_updates,
        judge=lambda n: judged(
            f"{percent(n.last)} of the top tokens of the last two layers' updates belong to a concept, "
            f"{percent(n.earlier)} in earlier layers.",
            below(n.ratio, 0.5),
            below(n.last, 0.1),
        ),
        explain=explain_concepts,
    ),
)


def section(m: Measurements) -> Section:
    """Show Tab. 2 and Fig. 2, and the concepts that a judge, if given, finds for the same value vectors."""
    reading = "read by the adaptive softmax's log-probabilities" if comparable_basis(m.lm) == "final" else "raw reading"
    columns = {"random_vectors": RANDOM, "updates": UPDATES, **({"negated": NEGATED} if NEGATED in m.concepts else {})}
    if m.concepts_by_lens is not None:
        columns |= {"values_by_lens": VALUES + BY_LENS, "random_vectors_by_lens": RANDOM + BY_LENS}
    of_layers = {
        "layer": range(m.lm.n_layers),
        **{kind: _over_layers(m, VALUES, (kind,)) for kind in COUNTED},
        "in_a_concept": coverage_by_layer(m).layers,
        **{column: _over_layers(m, vectors, COUNTED) for column, vectors in columns.items()},
    }
    shown = (*COUNTED, "in_a_concept", *columns)
    by_kind = "Share of the top tokens that belong to a concept, by layer and kind"
    by_vectors = "Sub-updates, random vectors and updates, by layer"
    every = m.concepts[VALUES].to_table()
    return Section(
        "Concepts in the vocabulary (Sec. 4)",
        (
            f"The {TOP} tokens that each vector promotes most ({reading}) are searched for concepts: classes that at "
            "least four of them share, which is more than chance explains. Classes are those of WordNet, of grammar "
            "and of names. In the paper, experts named the concepts; here a program finds them, so shares can be "
            "compared with each other, but not with the paper's percentages.",
            "`random vectors` are drawn from a normal distribution with the mean and the standard deviation of each "
            "layer's values. `updates` are whole FFN outputs at the ends of random prefixes. If a norm follows the "
            "FFN, values are multiplied by its gain. In gated layers coefficients have either sign, and the sign of a "
            "value in the weights is only a convention: `sub-updates` are the values at the sign that their "
            "coefficients have on balance at the ends of the examples; values at the other sign have a separate row.",
            *_about_the_lens(m),
        ),
        (
            _table_2(m),
            exhibit("fig2", "Concepts by layer and kind (Fig. 2)", of_layers, m.provenance, percent=shown),
            *_judged(m),
            Exhibit("concepts", every, "Every concept of the sampled values.", folded=True, apart=(("score",),)),
        ),
        (
            by_layer("fig2", by_kind, "fig2", COUNTED, "share of top tokens", "bar"),
            by_layer(
                "coverage_by_layer", by_vectors, "fig2", {"in_a_concept": VALUES, **columns}, "share of top tokens"
            ),
        ),
    )


def _about_the_lens(m: Measurements) -> tuple[str, ...]:
    return (
        ()
        if m.concepts_by_lens is None
        else (
            "The paper decodes a vector as if no layer followed. The rows “by the lens” have the same vectors, decoded "
            "by the model's fitted lens, which first maps them to the end of the model. Random vectors are the control "
            "for both. Verdicts are about the paper's way of decoding.",
        )
    )


def _table_2(m: Measurements) -> Exhibit:
    printed = {"in_a_concept": COVERAGE, "with_stopwords": COVERAGE_WITH_STOP_WORDS}

    def cell(vectors: str, column: str) -> Measured:
        published = printed.get(column, {}).get(vectors, {}).get("gpt2")
        return replace(shares(m)[vectors][column], published=published)

    cells = {
        "vectors": list(readings(m)),
        **{column: [cell(vectors, column) for vectors in readings(m)] for column in _GROUPS},
        "in_a_concept_wikilm": [COVERAGE.get(vectors, {}).get("wikilm") for vectors in readings(m)],
        "concepts": list(numbers(m).values()),
    }
    title = "Share of the top 30 tokens that belong to a concept (Tab. 2)"
    note, shown = "Published numbers are GPT2's, with WikiLM's next to them.", (*_GROUPS, "in_a_concept_wikilm")
    return exhibit("tab2", title, cells, m.provenance, note, percent=shown)


def _judged(m: Measurements) -> list[Exhibit]:
    if m.judged is None:
        return []
    both = [automatic(m.concepts[VALUES]), m.judged]
    title = f"Concepts in the same values, by the program and by {m.judged.annotator}"
    return [
        exhibit("judged", title, summary(both).columns, m.provenance, percent=("in_a_pattern", *KINDS)),
        Exhibit("judge_agreement", token_agreement(both, m.provenance), "Token by token."),
    ]


PARTS = (Part(section, QUANTITIES),)

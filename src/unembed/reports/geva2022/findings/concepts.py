"""The claims of section 4: what the top tokens of values, random vectors and updates have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

from unembed.concepts.token_classes import COUNTED
from unembed.concepts.value_concepts import TOP
from unembed.document.intervals import Measured, difference_of, mean_of, paired_difference, ratio_of
from unembed.document.numbers import format_interval, format_percent, percent, points
from unembed.reports.claims import Claim, Judgement, Numbers, above, below, verdict_of
from unembed.reports.geva2022.measurements import RANDOM, UPDATES, VALUES, Measurements
from unembed.reports.geva2022.published import GPT2_VOCAB
from unembed.reports.geva2022.sections.concepts import WITH_STOP_WORDS


def _coverage(m: Measurements) -> Numbers:
    found = {name: m.concepts[name] for name in (VALUES, RANDOM, UPDATES)}
    values, random, updates = (found[name].coverage(COUNTED) for name in (VALUES, RANDOM, UPDATES))
    return {
        "values": mean_of(values, seed=m.seed, share=True),
        "random": mean_of(random, seed=m.seed, share=True),
        "updates": mean_of(updates, units=m.update_prefixes, seed=m.seed, share=True),
        "against_random": ratio_of(values, random, seed=m.seed, share=True),
        "updates_against_values": ratio_of(updates, values, units_a=m.update_prefixes, seed=m.seed, share=True),
    }


def judge_values_against_random(values: Measured, random: Measured, against_random: Measured, **_: Any) -> Judgement:
    """Concepts in values compared with random vectors."""
    here = (
        f"{percent(values)} of the top tokens of values belong to a concept, {percent(random)} of those of random "
        f"vectors: {format_interval(against_random)} times as many."
    )
    return Judgement(here, verdict_of(above(against_random, 1.5)))


def judge_updates_against_values(
    values: Measured, updates: Measured, updates_against_values: Measured, **_: Any
) -> Judgement:
    """Concepts in whole updates compared with values."""
    here = (
        f"{percent(updates)} of the top tokens of whole updates belong to a concept, {percent(values)} of those of "
        f"values: {format_interval(updates_against_values)} times as many."
    )
    return Judgement(here, verdict_of(below(updates_against_values, 2 / 3)))


def _stop_words(m: Measurements) -> Numbers:
    added = {
        name: m.concepts[name].coverage(WITH_STOP_WORDS) - m.concepts[name].coverage(COUNTED)
        for name in (VALUES, UPDATES)
    }
    return {
        "in_updates": mean_of(added[UPDATES], units=m.update_prefixes, seed=m.seed, share=True),
        "in_values": mean_of(added[VALUES], seed=m.seed, share=True),
        "difference": difference_of(added[UPDATES], added[VALUES], units_a=m.update_prefixes, seed=m.seed, share=True),
    }


def judge_stop_words(in_updates: Measured, in_values: Measured, difference: Measured) -> Judgement:
    """What stop words add."""
    here = (
        f"Stop words and punctuation add {percent(in_updates)} of the top tokens of updates and {percent(in_values)} "
        f"of those of values, a difference of {points(difference)}."
    )
    return Judgement(here, verdict_of(above(difference, 0.05)))


def _number_of_concepts(m: Measurements) -> Numbers:
    counts = {name: m.concepts[name].number().astype(np.float64) for name in (VALUES, RANDOM)}
    return {
        "values": mean_of(counts[VALUES], seed=m.seed, share=True),
        "random": mean_of(counts[RANDOM], seed=m.seed, share=True),
        "difference": difference_of(counts[VALUES], counts[RANDOM], seed=m.seed, share=True),
    }


def judge_number_of_concepts(values: Measured, random: Measured, difference: Measured) -> Judgement:
    """Concepts per vector."""
    here = f"{format_interval(values)} concepts per value, {format_interval(random)} per random vector."
    return Judgement(here, verdict_of(above(values, 1), above(difference, 0)))


def _coverage_by_layer(m: Measurements) -> Numbers:
    share, at = m.concepts[VALUES].coverage(COUNTED), np.array(m.concepts[VALUES].layers)
    return {"layers": [mean_of(share[at == n], seed=m.seed, share=True) for n in range(m.lm.n_layers)]}


def judge_coverage_by_layer(layers: list[Measured]) -> Judgement:
    """The share in every layer."""
    low, high = min(layers, key=lambda x: x.value), max(layers, key=lambda x: x.value)
    here = f"By layer between {percent(low)} and {percent(high)} of the top tokens of values belong to a concept."
    outside = any(x.high < 0.2 or x.low > 0.7 for x in layers)
    inside = all(0.2 <= x.value <= 0.7 for x in layers)
    return Judgement(here, verdict_of(False if outside else True if inside else None))


def _semantic(m: Measurements) -> Numbers:
    values, random = m.concepts[VALUES], m.concepts[RANDOM]
    semantic, other = values.coverage(("semantic",)), values.coverage(tuple(k for k in COUNTED if k != "semantic"))
    return {
        "semantic": mean_of(semantic, seed=m.seed, share=True),
        "other": mean_of(other, seed=m.seed, share=True),
        "difference": paired_difference(semantic, other, seed=m.seed),
        "random": mean_of(random.coverage(("semantic",)), seed=m.seed, share=True),
        "random_against_values": ratio_of(random.coverage(("semantic",)), semantic, seed=m.seed, share=True),
    }


def judge_mostly_semantic(semantic: Measured, other: Measured, difference: Measured, **_: Any) -> Judgement:
    """Semantic concepts compared with the other kinds."""
    here = (
        f"{percent(semantic)} of the top tokens of values are in semantic concepts, {percent(other)} in syntactic "
        "concepts or names."
    )
    return Judgement(here, verdict_of(above(difference, 0), above(semantic, 0.05)))


def judge_random_not_semantic(
    semantic: Measured, random: Measured, random_against_values: Measured, **_: Any
) -> Judgement:
    """Semantic concepts in random vectors."""
    here = (
        f"{percent(random)} of the top tokens of random vectors are in semantic concepts, {percent(semantic)} of "
        "those of values."
    )
    return Judgement(here, verdict_of(below(random_against_values, 0.5)))


def _last_updates(m: Measurements) -> Numbers | None:
    found = m.concepts[UPDATES]
    share, at = found.coverage(COUNTED), np.array(found.layers)
    last = at >= m.lm.n_layers - 2
    if last.all():
        return None
    units = m.update_prefixes
    return {
        "last": mean_of(share[last], units=units[last], seed=m.seed, share=True),
        "earlier": mean_of(share[~last], units=units[~last], seed=m.seed, share=True),
        "ratio": ratio_of(
            share[last], share[~last], units_a=units[last], units_b=units[~last], seed=m.seed, share=True
        ),
    }


def judge_last_updates(last: Measured, earlier: Measured, ratio: Measured) -> Judgement:
    """Concepts in the updates of the last two layers."""
    here = (
        f"{percent(last)} of the top tokens of the last two layers' updates belong to a concept, {percent(earlier)} "
        "in earlier layers."
    )
    return Judgement(here, verdict_of(below(ratio, 0.5), below(last, 0.1)))


def explain_concepts(m: Measurements) -> str:
    """How much of the vocabulary the top tokens are, and what the program finds."""
    return (
        f"Concepts are found by a program, not by people, among {TOP} of {m.lm.d_vocab:,} tokens "
        f"({format_percent(TOP / m.lm.d_vocab)} of the vocabulary; {format_percent(TOP / GPT2_VOCAB)} in GPT2), of a "
        f"model with {m.lm.n_layers} layers of {m.lm.memories_a_layer} values."
    )


CLAIMS: tuple[Claim[Measurements], ...] = (
    Claim(
        "values against random",
        "concepts",
        "A substantially higher portion of top tokens were associated with a concept in value vectors than in random "
        "ones.",
        "Sec. 4.1, Tab. 2",
        "share of the 30 top tokens in a concept, values over random vectors",
        "36.7 % against 16 % in GPT2, 55.1 % against 22.7 % in WikiLM: 2.3 and 2.4 times as many",
        "The ratio is above 1.5, midway between no difference and the paper's ratios on a logarithmic scale; bootstrap "
        "over vectors.",
        _coverage,
        judge_values_against_random,
        explain_concepts,
    ),
    Claim(
        "updates against values",
        "concepts",
        "Without stop words, projections of whole updates have a considerably lower token coverage than those of "
        "sub-updates.",
        "Sec. 4.1, Tab. 2",
        "share of the 30 top tokens in a concept, updates over values",
        "11.8 % against 36.7 % in GPT2, 19.7 % against 55.1 % in WikiLM: 0.32 and 0.36 times as many",
        "The ratio is below 2/3, which is nearer to no difference than to the paper's ratios; bootstrap over values "
        "and over the prefixes of updates.",
        _coverage,
        judge_updates_against_values,
        explain_concepts,
    ),
    Claim(
        "stop words in updates",
        "concepts",
        "For a large part of the tokens of updates the concept was stop words and punctuation.",
        "Sec. 4.1, Tab. 2",
        "share of top tokens that stop words add, updates less values",
        "34.2 points of updates in GPT2 and 19.7 in WikiLM, 0.3 and 0 points of values",
        "The difference is above 5 points, a quarter of the smaller published one; bootstrap over values and over the "
        "prefixes of updates.",
        _stop_words,
        judge_stop_words,
    ),
    Claim(
        "number of concepts",
        "concepts",
        "Value vectors hold more than one concept on average, random vectors about half a one.",
        "Sec. 4.1",
        "concepts per vector",
        "more than 1 in values, about 0.5 in random vectors (the paper's words)",
        "Values hold more than 1 and more than random vectors; bootstrap over vectors.",
        _number_of_concepts,
        judge_number_of_concepts,
        explain_concepts,
    ),
    Claim(
        "coverage of every layer",
        "concepts",
        "In both models and across all layers, a substantial portion of the top tokens were associated with concepts.",
        "Sec. 4.2, Fig. 2",
        "share of the 30 top tokens of values in a concept, by layer",
        "40 to 70 % in WikiLM, 20 to 65 % in GPT2",
        "Every layer's share lies between 20 and 70 %, the range of both models; a layer whose interval lies outside "
        "disagrees.",
        _coverage_by_layer,
        judge_coverage_by_layer,
        explain_concepts,
    ),
    Claim(
        "mostly semantic",
        "concepts",
        "Most of the concepts were classified as semantic.",
        "Sec. 4.2, Fig. 2",
        "share of top tokens of values in semantic concepts less that in other ones",
        "most of 36.7 % (GPT2: 24.9 %) and of 55.1 % (WikiLM)",
        "The difference is above 0 and semantic concepts hold more than 5 % of the tokens, a fifth of GPT2's 24.9 %, "
        "so that chance finds do not count.",
        _semantic,
        judge_mostly_semantic,
    ),
    Claim(
        "random vectors are not semantic",
        "concepts",
        "Hardly any tokens of random vectors were marked as semantic concepts.",
        "Sec. 4.1",
        "share of top tokens in semantic concepts, random vectors over values",
        "none in WikiLM; GPT2's share is not in the text at hand",
        "The ratio is below 1/2; the paper's is 0 in WikiLM. Bootstrap over vectors.",
        _semantic,
        judge_random_not_semantic,
    ),
    Claim(
        "last updates",
        "concepts",
        "There are very few concepts in the updates of the last two layers of WikiLM.",
        "Sec. 4.1",
        "share of top tokens in a concept, updates of the last two layers over earlier ones",
        "very few in the last two layers, 19.7 % over all layers (WikiLM)",
        "The ratio is below 1/2 and the share itself below 10 %, half of WikiLM's average; bootstrap over prefixes.",
        _last_updates,
        judge_last_updates,
        explain_concepts,
    ),
)

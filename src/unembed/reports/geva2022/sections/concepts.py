"""Section 4 of the paper: do sub-updates promote concepts? Tab. 2 and Fig. 2, with automatic concepts."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import torch

from unembed.concepts.annotation.agreement import token_agreement
from unembed.concepts.annotation.files import KINDS, Annotation, Pattern, automatic, summary
from unembed.concepts.annotation.judge import judge_annotation, require_judge
from unembed.concepts.token_classes import COUNTED
from unembed.concepts.value_concepts import TOP, VectorConcepts, sample_memories, value_concepts, vector_concepts
from unembed.corpus import Segment
from unembed.memories.norm_overlap import vectors_like
from unembed.memories.values import values_of, written_values
from unembed.models.decoder import Decoder
from unembed.reports.claims import row
from unembed.reports.document.intervals import columns, mean_of
from unembed.reports.document.model import Exhibit, Figure, Section
from unembed.reports.geva2022 import published
from unembed.reports.stages import Work
from unembed.results import Provenance, Table
from unembed.stream.run import run

NEGATED = "sub-updates, negated"
"""What a negative coefficient promotes: the same values read at their other end."""
WITH_STOP_WORDS = (*COUNTED, "stopwords")


@torch.no_grad()
def three_kinds(lm: Decoder, examples: list[Segment], per_layer: int, seed: int) -> dict[str, VectorConcepts]:
    """Concepts of values, of random vectors like them, and of whole updates: so many of each from each layer.

    Where coefficients are signed also of the values negated: what a negative coefficient promotes.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = range(lm.n_layers)
    chosen = sample_memories(lm, per_layer, seed)
    values = value_concepts(lm, chosen)
    signed = [(n, i) for n, i in chosen if lm.feed_forward(n).is_gated]
    random = [vectors_like(written_values(lm, n), per_layer, generator) for n in layers]
    labels = [f"random {n}.{i}" for n in layers for i in range(per_layer)]
    drawn = torch.randperm(len(examples), generator=generator)[:per_layer].tolist()
    updates = [run(lm, examples[i].tokens[None], "mlp_out", logits=False)["mlp_out"][:, 0, -1] for i in drawn]
    stacked = torch.stack(updates, dim=1)
    negated = {}
    if signed:
        names = [f"-L{n}M{i}" for n, i in signed]
        negated = {NEGATED: vector_concepts(lm, -values_of(lm, signed), names, [n for n, _ in signed], seed=seed)}
    return {
        "sub-updates": values,
        **negated,
        "random vectors": vector_concepts(
            lm, torch.cat(random), labels, [n for n in layers for _ in range(per_layer)], seed=seed
        ),
        "updates": vector_concepts(
            lm,
            stacked.flatten(0, 1),
            [f"update {n} of prefix {examples[i].number}" for n in layers for i in drawn],
            [n for n in layers for _ in drawn],
            seed=seed,
        ),
    }


def judged_values(found: VectorConcepts, judge: object, work: Work) -> Annotation:
    """What a judge sees in the values' top tokens; asked once, then kept."""
    who = require_judge(judge)

    def compute() -> dict[str, np.ndarray]:
        work.progress(f"asking {who.annotator}", 0, 1)
        said = [[[p.description, p.kind, list(p.tokens)] for p in row] for row in judge_annotation(found, who).patterns]
        return {"patterns": np.array(json.dumps(said))}

    said = json.loads(str(work.stage("judge", compute)["patterns"]))
    patterns = tuple(tuple(Pattern(d, kind, tuple(places)) for d, kind, places in row) for row in said)
    return replace(automatic(found), annotator=who.annotator, patterns=patterns)


def section(found: dict[str, VectorConcepts], provenance: Provenance, judge: Annotation | None = None) -> Section:
    """Tables, figures and findings; with what a judge found in the same values, if one was asked."""
    table, by_layer = _table_2(found, provenance), _by_layer(found, provenance)
    rows = {row["vectors"]: row for row in table.rows()}
    real, random, updates = (rows[name] for name in ("sub-updates", "random vectors", "updates"))
    findings = (
        row(
            "Sub-updates promote concepts far more than random vectors do (36.7 % of top tokens against 16 % in GPT2, "
            "55.1 % against 22.7 % in WikiLM).",
            f"{real['in_a_concept']:.1%} against {random['in_a_concept']:.1%}.",
            bool(real["in_a_concept_low"] > random["in_a_concept_high"]),
            "Sec. 4, Tab. 2",
        ),
        row(
            "Whole updates hold fewer concepts than sub-updates once stop words are left out (11.8 % in GPT2).",
            f"{updates['in_a_concept']:.1%} against {real['in_a_concept']:.1%} of sub-updates.",
            bool(updates["in_a_concept_high"] < real["in_a_concept_low"]),
            "Sec. 4, Tab. 2",
        ),
        row(
            "In updates much of what looks like a concept is stop words and punctuation (34 points in GPT2).",
            f"Stop words add {updates['with_stopwords'] - updates['in_a_concept']:.1%} to updates, "
            f"{real['with_stopwords'] - real['in_a_concept']:.1%} to sub-updates.",
            bool(updates["with_stopwords"] - updates["in_a_concept"] > real["with_stopwords"] - real["in_a_concept"]),
            "Sec. 4, Tab. 2",
        ),
        row(
            "Sub-updates hold more than one concept on average, random vectors about half a one.",
            f"{real['concepts']:.2f} and {random['concepts']:.2f}.",
            bool(real["concepts"] > 1 and real["concepts"] > random["concepts"]),
            "Sec. 4",
        ),
    )
    text = (
        f"For each vector the {TOP} tokens it promotes most (raw reading) are searched for classes that at least four "
        "share and that chance does not explain: WordNet classes, grammar, names. The paper's experts named concepts "
        "by hand; these are found by a program, so shares compare with each other, not with the paper's percentages.",
        "`random vectors` come from a normal with the mean and deviation of each layer's values. `updates` are whole "
        "FFN outputs at the ends of random prefixes. Where a norm follows the FFN, values are read behind its gain; "
        "in gated layers coefficients take both signs: `sub-updates` are the values as they are, and those negated, "
        "whose top tokens are the ones that the values suppress most, stand in a row of their own.",
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
        ),
    )
    exhibits = (
        Exhibit("tab2", table, "Published numbers are GPT2's; WikiLM's stand beside them.", _PERCENT),
        Exhibit("fig2", by_layer, "", _PERCENT_BY_LAYER),
        *_judged(found["sub-updates"], judge, provenance),
        Exhibit("concepts", found["sub-updates"].table(), "Every concept of the sampled values.", folded=True),
    )
    return Section("Concepts in the vocabulary (Sec. 4)", text, exhibits, figures, findings)


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


def _table_2(found: dict[str, VectorConcepts], provenance: Provenance) -> Table:
    names = list(found)
    cells: dict[str, list] = {"vectors": names}
    shown = {"in_a_concept": COUNTED, "with_stopwords": WITH_STOP_WORDS, **{k: (k,) for k in COUNTED}}
    printed = {"in_a_concept": published.COVERAGE, "with_stopwords": published.COVERAGE_WITH_STOP_WORDS}
    for column, kinds in shown.items():
        numbers = [
            mean_of(found[n].coverage(kinds), published=printed.get(column, {}).get(n, {}).get("gpt2")) for n in names
        ]
        cells |= columns(column, numbers)
    cells["in_a_concept_wikilm"] = [published.COVERAGE.get(n, {}).get("wikilm") for n in names]
    cells |= columns("concepts", [mean_of(found[n].number().astype(np.float64)) for n in names])
    return Table("Share of the top 30 tokens that belong to a concept (Tab. 2)", cells, provenance)


def _by_layer(found: dict[str, VectorConcepts], provenance: Provenance) -> Table:
    real = found["sub-updates"]
    layers = sorted(set(real.layers))
    cells: dict[str, list] = {"layer": layers}

    def over_layers(concepts: VectorConcepts, kinds: tuple[str, ...]) -> list:
        share, at = concepts.coverage(kinds), np.array(concepts.layers)
        return [mean_of(share[at == n]) for n in layers]

    for kind in COUNTED:
        cells |= columns(kind, over_layers(real, (kind,)))
    cells |= columns("in_a_concept", over_layers(real, COUNTED))
    cells |= columns("random_vectors", over_layers(found["random vectors"], COUNTED))
    cells |= columns("updates", over_layers(found["updates"], COUNTED))
    if NEGATED in found:
        cells |= columns("negated", over_layers(found[NEGATED], COUNTED))
    return Table("Concepts by layer and kind (Fig. 2)", cells, provenance)

"""Sections about single heads and pairs of heads: scores, eigenvalues, composition, induction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from unembed.attention.behaviour.head_scores import KINDS, HeadScores, effects_missing, number_or_none
from unembed.attention.behaviour.in_context import TextScores
from unembed.attention.behaviour.induction import InductionEvidence, induction_missing
from unembed.attention.circuits import Circuits
from unembed.attention.weights.composition import MODES
from unembed.attention.weights.composition_answer import composition_section
from unembed.attention.weights.missing_circuits import layers_by_reason, layers_in_words
from unembed.document.model import Exhibit, Figure, Section
from unembed.document.numbers import as_written
from unembed.errors import Unsupported
from unembed.names import HeadBasis
from unembed.reports.elhage2021.measurements import ROLE, Measurements
from unembed.reports.elhage2021.published import COPYING_HEADS, NO_NUMBERS, NOT_IN_PAPER
from unembed.reports.elhage2021.sections.prompt import effects_section, shown_entries
from unembed.results import Provenance, Table, visible

_ROLES = {"induction": "induction", "previous_token": "previous token", "duplicate_token": "duplicate token"}


def all_heads(m: Measurements) -> list[Section]:
    """Scores of every head on repeated random tokens."""
    return [heads_section(m.circuits, m.scores, m.basis, m.provenance)]


def copying(m: Measurements) -> list[Section]:
    """Eigenvalues of the heads that copy most and least."""
    try:
        score = m.copying.score
    except Unsupported as refused:
        return [Section("Copying", (f"Not available: {refused.why}.",))]
    known = (~score.isnan()).sum()
    order = score.nan_to_num(-torch.inf).flatten().argsort(descending=True)[:known].tolist()
    shown = [divmod(i, score.shape[1]) for i in dict.fromkeys([*order[:3], *order[-1:]])]
    return [eigenvalue_section(m.circuits, shown, m.basis, m.provenance, "Copying")]


def composition(m: Measurements) -> list[Section]:
    """Q-, K- and V-composition of all pairs."""
    return [composition_section(m.circuits, MODES, 10, m.basis, m.seed, m.provenance)]


def induction(m: Measurements) -> list[Section]:
    """Induction heads by weights and by behaviour."""
    return [induction_section(m.circuits, m.evidence, m.basis, m.provenance, 24, m.on_text)]


def one_position(m: Measurements) -> list[Section]:
    """Where the strongest induction head attends at one position, and how that changes the logits."""
    one = m.one_position
    names = [visible(name) for name in m.lm.token_strings(one.tokens)]
    text = (
        f"A text of {(len(names) + 1) // 2} tokens, repeated. At the last token, `{names[-1]}`, head "
        f"L{one.layer}H{one.head} should attend to the token after the earlier occurrence, `{names[one.expected]}`, "
        "and raise it.",
    )
    head = f"L{one.layer}H{one.head}"
    return [effects_section(m.lm, one.tokens, one.effects, head, m.provenance, "source_effects", text=text)]


def role_of(scores: HeadScores, layer: int, head: int) -> str:
    """The main behaviour of a head on repeated tokens, in words; empty where no score reaches `ROLE`."""
    best = max(_ROLES, key=lambda kind: float(scores[kind][layer, head]))
    if float(scores[best][layer, head]) >= ROLE:
        return _ROLES[best]
    return "resting" if float(scores.resting[layer, head]) >= ROLE else ""


def heads_section(circuits: Circuits, scores: HeadScores, basis: HeadBasis, provenance: Provenance) -> Section:
    """Every head: what it attends to on repeated tokens, and whether its circuits copy and match.

    A cell is empty where a layer has no such number; the section's text states why.
    """
    places = scores.places()
    by_circuit, missing = _by_circuit(circuits, basis, places)
    if without := effects_missing(circuits.lm):
        missing["What heads add to logits"] = without
    columns: dict[str, list[Any]] = {
        "layer": [layer for layer, _ in places],
        "head": [head for _, head in places],
        "role": [role_of(scores, *place) for place in places],
    }
    by_weights: dict[str, list[Any]] = {name: columns[name] for name in ("layer", "head")}
    copied = dict(by_weights)
    for kind in KINDS:
        mean, half = scores[kind], scores.interval(kind)
        table_of_kind = copied if kind == "copying" else columns
        for name, values in ((kind, mean), (f"{kind}_low", mean - half), (f"{kind}_high", mean + half)):
            table_of_kind[name] = [number_or_none(values[place]) for place in places]
    by_weights |= by_circuit
    n, length = scores.by_sequence.shape[1], scores.length
    note = (
        f"Means over {n} sequences of {length} random tokens repeated twice, with 95 % intervals. Copying and matching "
        "scores: sum of the eigenvalues of the full OV and QK circuits over the sum of their sizes, from the weights "
        f"alone; next to each the share of positive ones. A role is named from a mean attention of {ROLE:g} on."
    )
    if others := [str(n) for n in range(circuits.lm.n_layers) if n not in circuits.lm.attention_layers]:
        note += (
            f" Layers without attention have no attention weights, so these scores do not exist there: "
            f"{', '.join(others)}."
        )
    absent = tuple(
        f"{what}: not available in {layers_in_words(of, circuits.lm)}, because {why}."
        for what, reasons in missing.items()
        for why, of in layers_by_reason(reasons).items()
    )
    table = Table("What heads attend to on repeated random tokens", columns, provenance)
    logits = Table("What heads add to the logit of the token they attend to most, above the mean", copied, provenance)
    weights = Table("What the circuits of heads copy and match, by weights", by_weights, provenance)
    heat = tuple(
        Figure(
            f"heads_{kind}",
            title,
            "heat",
            source,
            "head",
            (kind,),
            x_label="head",
            y_label="layer",
            rows="layer",
            y_range=ends,
            published=NOT_IN_PAPER,
        )
        for source, kind, title, ends in (
            ("heads", "previous_token", "Attention to the previous token", (0, 1)),
            ("heads", "induction", "Attention to the token after the earlier occurrence", (0, 1)),
            ("heads_by_weights", "copying_score", "Copying score of the OV circuit", (-1, 1)),
        )
    )
    percent = ("previous_token", "duplicate_token", "induction", "resting", "current_token")
    scatter = Figure(
        "heads_positive", "Positive eigenvalues of the QK and OV circuits", "scatter", "heads_by_weights",
        "positive_eigenvalues", ("positive_matching",), x_label="OV, share positive", y_label="QK, share positive",
        y_range=(0, 1), percent=True, published=NO_NUMBERS,
    )  # fmt: skip
    edges = [i / 5 for i in range(-5, 6)]
    known = [s for s in by_circuit["copying_score"] if s is not None]
    counted = [sum(low <= s < high or (high == 1 and s == 1) for s in known) for low, high in pairwise(edges)]
    histogram = Table(
        "How many heads have which copying score",
        {"copying_score": [as_written(f"{low:.1f} to {high:.1f}") for low, high in pairwise(edges)], "heads": counted},
        provenance,
    )
    bars = Figure(
        "copying_histogram", "Heads by copying score", "bar", "copying_histogram", "copying_score", ("heads",),
        x_label="copying score", y_label="heads",
        published=f"Published: {COPYING_HEADS} of the one-layer model copy; no other numbers are at hand.",
    )  # fmt: skip
    exhibits = (
        Exhibit("heads", table, percent=percent),
        Exhibit("heads_by_weights", weights, percent=("positive_eigenvalues", "positive_matching")),
        Exhibit("heads_copying", logits, folded=True),
        Exhibit("copying_histogram", histogram, folded=True),
    )
    return Section("Heads", (note, *absent), exhibits, (*heat, scatter, bars))


def _by_circuit(
    circuits: Circuits, basis: HeadBasis, places: Sequence[tuple[int, int]]
) -> tuple[dict[str, list[float | None]], dict[str, Mapping[int, str]]]:
    """What circuits copy and match, by column, and by circuit the layers without it and why."""
    columns: dict[str, list[float | None]] = {}
    missing: dict[str, Mapping[int, str]] = {}
    for what, spectra_of, names in (
        ("Copying", circuits.copying, ("copying_score", "positive_eigenvalues")),
        ("Matching", circuits.matching, ("matching_score", "positive_matching")),
    ):
        try:
            spectra = spectra_of(basis)
        except Unsupported as refused:
            columns |= {name: [None] * len(places) for name in names}
            missing[what] = dict.fromkeys(circuits.lm.attention_layers, refused.why)
            continue
        for name, values in zip(names, (spectra.score, spectra.positive_fraction), strict=True):
            columns[name] = [number_or_none(values[place]) for place in places]
        if spectra.missing:
            missing[what] = spectra.missing
    return columns, missing


def eigenvalue_section(
    circuits: Circuits,
    heads: list[tuple[int, int]],
    basis: HeadBasis,
    provenance: Provenance,
    title: str = "Eigenvalues",
) -> Section:
    """Eigenvalues of full OV circuits on the complex plane, radius log10(1 + |lambda|)."""
    spectra = circuits.copying(basis)
    exhibits, figures = [], []
    for layer, head in heads:
        values = spectra.eigenvalues[layer, head]
        radius, angle = values.abs().log1p() / math.log(10), values.angle()
        name = f"eigenvalues_{layer}_{head}"
        score = float(spectra.score[layer, head])
        columns = {
            "real": values.real.tolist(),
            "imaginary": values.imag.tolist(),
            "x": (radius * angle.cos()).tolist(),
            "y": (radius * angle.sin()).tolist(),
        }
        exhibits.append(Exhibit(name, Table(f"Eigenvalues of head L{layer}H{head}", columns, provenance), folded=True))
        figures.append(
            Figure(
                name, f"Head L{layer}H{head}: copying score {score:+.2f}", "scatter", name, "x", ("y",),
                x_label="real, log radius", y_label="imaginary, log radius", equal=True,
                published=NO_NUMBERS,
            )
        )  # fmt: skip
    text = ("Each point is an eigenvalue of `W_E W_OV W_U`; its distance from the middle is log10(1 + |lambda|).",)
    return Section(title, text, tuple(exhibits), tuple(figures))


def induction_section(
    circuits: Circuits,
    found: Sequence[InductionEvidence],
    basis: HeadBasis,
    provenance: Provenance,
    top: int | None = None,
    on_text: TextScores | None = None,
) -> Section:
    """Every head above the first layer: signs of induction in its weights, compared with what it does.

    A cell is empty where the model has no such circuit; the section's text states why.
    """
    shown = found if top is None else found[:top]
    columns: dict[str, list[Any]] = {
        "head": [f"L{e.layer}H{e.head}" for e in shown],
        "partner": [e.partner and f"L{e.partner[0]}H{e.partner[1]}" for e in shown],
        "copying_score": [e.copying for e in shown],
        "k_composition": [e.k_composition for e in shown],
        "matching_through_partner": [e.matching for e in shown],
        "by_weights": [e.by_weights for e in shown],
        "induction": [e.induction for e in shown],
        "partner_previous_token": [e.partner_previous_token for e in shown],
    }
    text = (
        "From the weights alone: does the head copy, which earlier head do its keys read most, and does its QK circuit "
        "through that head match a token with the one before the source? Next to it what the head and its partner do "
        "on repeated random tokens.",
        *induction_missing(circuits.lm, basis),
    )
    if on_text is not None:
        columns["in_corpus"] = [float(on_text.induction[e.layer, e.head]) for e in shown]
        text += (
            f"In the corpus: attention to what followed earlier occurrences of the same token, over "
            f"{on_text.n_positions:,} positions with one; attention spread evenly would give {on_text.by_chance:.1%}.",
        )
    table = Table(f"Induction heads of {circuits.lm.name}", columns, provenance)
    figures = (
        Figure(
            "induction", "Weights against behaviour", "scatter", "induction", "by_weights", ("induction",),
            x_label="by weights", y_label="attention to what followed", published=NOT_IN_PAPER,
        ),
    )  # fmt: skip
    exhibit = Exhibit(
        "induction", table, percent=("induction", "partner_previous_token", *(("in_corpus",) if on_text else ()))
    )
    known = any(e.by_weights is not None for e in shown)
    return Section("Induction", text, (exhibit,), figures if known else ())


def full_circuit_exhibits(
    circuits: Circuits, layer: int, head: int, top: int, basis: HeadBasis, provenance: Provenance, offset: int = 0
) -> list[Exhibit]:
    """The largest entries of a head's full OV and QK circuits, of those that it has, between tokens that it learned."""
    lm, exhibits = circuits.lm, []

    def listed(name: str, title: str, first: str, second: str, rows: Tensor, columns: Tensor, values: Tensor) -> None:
        table = Table(
            title,
            {
                f"{first}_token": lm.token_strings(rows),
                f"{second}_token": lm.token_strings(columns),
                "entry": [float(v) for v in values],
            },
            provenance,
        )
        exhibits.append(Exhibit(name, table))

    with suppress(Unsupported):
        ov = shown_entries(lm, circuits.ov_full(layer, head, basis), top)
        listed("ov_entries", "Largest entries of W_E W_OV W_U", "source", "output", *ov)
    with suppress(Unsupported):
        qk = shown_entries(lm, circuits.qk_full(layer, head, offset, basis), top)
        listed("qk_entries", "Largest entries of W_E W_QK W_E'", "destination", "source", *qk)
    return exhibits

"""Section "The negative pole": keys and values of gated layers at their other end."""

from __future__ import annotations

import numpy as np

from unembed.document.intervals import Measured, columns, share_of
from unembed.document.model import Exhibit, Figure, Section
from unembed.reports.geva2021 import published
from unembed.reports.geva2021.formatting import boxes, means, provenance_of
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.perturbation import KINDS
from unembed.reports.geva2021.sections.keys import perturbation_columns
from unembed.reports.geva2021.sections.values import predictive_columns
from unembed.reports.geva2021.values import Agreement
from unembed.results import Table


def poles_sections(m: Measurements) -> tuple[Section, ...]:
    """One section where coefficients are signed, none elsewhere."""
    if m.negative is None or m.agreement_negative is None:
        return ()
    a, b, found, provenance = m.agreement, m.agreement_negative, m.patterns_negative, provenance_of(m)
    layers = range(m.triggers.n_layers)
    ranks = [np.where(b.rank[b.layer(n)] > 0, b.rank[b.layer(n)], np.nan) for n in layers]
    agreement = {
        "layer": list(layers),
        **columns("positive", [_rate(a, n, m.seed) for n in layers]),
        **columns("negative", [_rate(b, n, m.seed) for n in layers]),
        "negative_by_chance": [b.by_chance(n) for n in layers],
        **boxes("rank", ranks),
    }
    of_layer = [found["layer"] == n for n in layers]
    covered = {
        "layer": list(layers),
        **columns("covered", means([1 - found["none"][at] for at in of_layer], m.seed)),
        **columns("shallow", means([(found["shallow"] + found["both"])[at] for at in of_layer], m.seed)),
        **columns("semantic", means([(found["semantic"] + found["both"])[at] for at in of_layer], m.seed)),
    }
    text = (
        "Here coefficients are products of an activation and a linear factor and take both signs (the paper's ReLU has "
        "one). A memory with a negative coefficient adds its value negated, so each key has a second list of triggers, "
        "the prefixes with its most negative coefficients, and each value a second reading, softmax(−v E), whose first "
        "token is the one that the value suppresses most. Everything in this section pairs these two; the sections "
        "before it pair the positive pole with the value as it is.",
    )
    return (
        Section(
            "The negative pole",
            text,
            (
                Exhibit(
                    "agreement_poles",
                    Table("Agreement of values with their keys' first triggers, at both poles", agreement, provenance),
                    percent=("positive", "negative", "negative_by_chance"),
                ),
                Exhibit(
                    "patterns_negative",
                    Table("Prefixes in a pattern, by rule, in triggers of the negative pole", covered, provenance),
                    percent=("covered", "shallow", "semantic"),
                ),
                _perturbation(m),
                _predictive(m, b),
            ),
            (
                Figure(
                    "agreement_poles",
                    "Agreement rate at both poles",
                    "line",
                    "agreement_poles",
                    "layer",
                    ("positive", "negative", "negative_by_chance"),
                    ("positive pole", "negative pole", "negative, by chance"),
                    "layer",
                    "values",
                    percent=True,
                    published=published.NOT_IN_PAPER,
                ),
            ),
        ),
    )


def _rate(a: Agreement, layer: int, seed: int) -> Measured:
    rows = a.layer(layer)
    return share_of(int(a.agrees[rows].sum()), int((a.target[rows] >= 0).sum()))


def _perturbation(m: Measurements) -> Exhibit:
    """The effect of shortening on the most negative coefficients of the same keys."""
    assert m.changes_negative is not None
    table = Table(
        "Relative change of negative coefficients by layer, triggers of the negative pole shortened",
        perturbation_columns(m, m.changes_negative),
        provenance_of(m),
    )
    note = "−100 %: the coefficient is 0; below that it has turned positive."
    return Exhibit("perturbation_negative", table, note, (*KINDS, *(f"median_{kind}" for kind in KINDS)))


def _predictive(m: Measurements, a: Agreement) -> Exhibit:
    """The negated values with the largest probability, and the triggers that make them appear."""
    assert m.negative is not None
    order = np.argsort(-a.probability, kind="stable")[: m.options.predictive]
    layer_of = np.searchsorted(a.bounds, order, side="right") - 1
    found = predictive_columns(m, a, m.negative.positions, order, layer_of)
    note = "Token: the first of −v. Precision: the share of the key's negative triggers that it follows."
    table = Table(f"The {len(order)} negated values with the largest probability", found, provenance_of(m))
    return Exhibit("predictive_negated_values", table, note, percent=("max_probability", "precision"), folded=True)

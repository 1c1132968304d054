"""Section "Values represent distributions": Figs. 4 to 6, the form of Table 2."""

from __future__ import annotations

from typing import Any

import numpy as np

from unembed.document.intervals import Measured, columns, share_of
from unembed.document.model import Exhibit, Figure, Finding, Section
from unembed.reports.geva2021 import published
from unembed.reports.geva2021.formatting import (
    ComparisonTable,
    boxes,
    first_upper,
    prefix_text,
    provenance_of,
)
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.values import Agreement
from unembed.results import Table

BINS = 8
"""Bins of the largest probability; the paper has eight."""


def values_section(m: Measurements, findings: tuple[Finding, ...]) -> Section:
    """Whether values put first what follows their keys' triggers."""
    a, provenance, n_layers = m.agreement, provenance_of(m), m.triggers.n_layers
    upper = first_upper(n_layers)
    rates = [_rate(m, a.layer(n)) for n in range(n_layers)]
    chance = [a.by_chance(n) for n in range(n_layers)]
    ranks = [np.where(a.rank[a.layer(n)] > 0, a.rank[a.layer(n)], np.nan) for n in range(n_layers)]
    table = {
        "layer": list(range(n_layers)),
        **columns("agreement", rates),
        "by_chance": chance,
        **boxes("rank", ranks),
    }
    known = a.target >= 0
    low, high = (_rate(m, slice(*ends)) for ends in ((0, int(a.bounds[upper])), (int(a.bounds[upper]), len(a.top))))
    random = 1 / m.lm.d_vocab
    order = np.argsort(-a.probability, kind="stable")[: m.options.predictive]
    layer_of = np.searchsorted(a.bounds, order, side="right") - 1
    in_upper = share_of(int((layer_of >= upper).sum()), len(order))
    some = share_of(int((a.hits[order] > 0).sum()), int((a.followed[order] > 0).sum()))
    usual = share_of(int((a.hits[known] > 0).sum()), int(known.sum()))
    bins = _by_probability(m)
    comparison = ComparisonTable("values_published", "Values: here and published")
    comparison.add(f"agreement rate, layers below {upper}", low, 0, "“close to zero” in layers 1 to 10 of 16")
    comparison.add(f"agreement rate, layers from {upper} on", high, None, "rising to 3.5 % (Sec. 4.1, Fig. 4)")
    comparison.add("agreement rate, last layer", rates[-1], 3.5, "Sec. 4.1, Fig. 4")
    comparison.add("a random token", Measured(random, random, random, m.lm.d_vocab), 0.0004, "Sec. 4.1")
    comparison.add(f"of the {len(order)} most predictive values, in the upper layers", in_upper, 97, "Sec. 4.2")
    comparison.add(f"of the {len(order)}, with an agreeing trigger in the top {m.triggers.top}", some, 46, "Sec. 4.2")
    comparison.add("of all values, with an agreeing trigger", usual)
    return Section(
        "Values represent distributions",
        (
            "Each value is read as a distribution, p = softmax(v E), without a coefficient or norm "
            f"(basis “{m.options.values_basis}”). It agrees where its first token is the one that follows its key's "
            "first "
            "trigger (the best one that is followed by a token). “By chance” pairs each value with the target of a "
            "random key of "
            "its layer: the same tokens, no pairing.",
        ),
        (
            *comparison.exhibits(provenance),
            Exhibit(
                "agreement",
                Table("Agreement of values with their keys' first triggers", table, provenance),
                percent=("agreement", "by_chance"),
            ),
            Exhibit(
                "max_probability",
                Table("Agreement by the largest probability", bins, provenance),
                percent=("agreement",),
            ),
            _predictive(m, order, layer_of),
        ),
        (
            Figure(
                "fig4_agreement",
                "Fig. 4: agreement rate",
                "line",
                "agreement",
                "layer",
                ("agreement", "by_chance"),
                ("agreement", "by chance"),
                "layer",
                "values",
                percent=True,
                references=(published.AGREEMENT,),
            ),
            Figure(
                "fig5_rank",
                "Fig. 5: rank of the trigger's next token in the value's distribution",
                "box",
                "agreement",
                "layer",
                ("rank",),
                ("rank",),
                "layer",
                "rank",
                references=(published.ranks_for(m.lm.d_vocab),),
            ),
            Figure(
                "fig6_max_probability",
                "Fig. 6: agreement by the value's largest probability",
                "bar",
                "max_probability",
                "from",
                ("agreement",),
                ("agreement",),
                "largest probability, from",
                "values",
                percent=True,
                references=(published.BY_PROBABILITY,),
            ),
        ),
        findings,
    )


def _rate(m: Measurements, rows: slice) -> Measured:
    known = m.agreement.target[rows] >= 0
    return share_of(int(m.agreement.agrees[rows].sum()), int(known.sum()))


def _by_probability(m: Measurements) -> dict[str, list]:
    """Agreement in eight bins of equal size by the value's largest probability."""
    a = m.agreement
    known = np.flatnonzero(a.target >= 0)
    order = known[np.argsort(a.probability[known], kind="stable")]
    parts = [part for part in np.array_split(order, BINS) if len(part)]
    rates = [share_of(int(a.agrees[part].sum()), len(part)) for part in parts]
    return {
        "bin": list(range(len(parts))),
        "from": [float(f"{a.probability[part[0]]:.3g}") for part in parts],
        "to": [float(f"{a.probability[part[-1]]:.3g}") for part in parts],
        **columns("agreement", rates),
    }


def _predictive(m: Measurements, order: np.ndarray, layer_of: np.ndarray) -> Exhibit:
    """Table 2's form: the most predictive values, what they predict, and how often their triggers agree."""
    found = predictive_columns(m, m.agreement, m.triggers.positions, order, layer_of)
    note = (
        f"Precision: the share of the key's top {m.triggers.top} triggers that are followed by the value's first token."
    )
    table = Table(f"The {len(order)} most predictive values", found, provenance_of(m))
    return Exhibit("predictive_values", table, note, percent=("max_probability", "precision"), folded=True)


def predictive_columns(
    m: Measurements, a: Agreement, positions: np.ndarray, order: np.ndarray, layer_of: np.ndarray
) -> dict[str, list[Any]]:
    """The columns of a table of values, or of negated ones: the rows `order` of `a`, and where their triggers lie."""
    first = [int(positions[row][0]) for row in order]
    return {
        "value": [m.lm.memory_name(int(n), int(row - a.bounds[n])) for row, n in zip(order, layer_of, strict=True)],
        "token": m.lm.token_strings(a.top[order].tolist()),
        "triggers": [int(f) for f in a.followed[order]],
        "max_probability": [float(p) for p in a.probability[order]],
        "precision": [
            float(h / f) if f else float("nan") for h, f in zip(a.hits[order], a.followed[order], strict=True)
        ],
        "first_trigger_text": [prefix_text(m, p) if p >= 0 else "" for p in first],
    }

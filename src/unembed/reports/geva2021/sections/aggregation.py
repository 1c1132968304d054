"""Section "Aggregating memories": Figs. 7 and 8, and what the agreeing cases are."""

from __future__ import annotations

import numpy as np

from unembed.document.intervals import columns, mean_of, share_of
from unembed.document.model import QUANTILES, Exhibit, Figure, Finding, Section
from unembed.reports.geva2021 import published
from unembed.reports.geva2021.examples import CARRIED
from unembed.reports.geva2021.formatting import (
    ComparisonTable,
    boxes,
    means,
    provenance_of,
    stop_words,
)
from unembed.reports.geva2021.measurements import Measurements
from unembed.results import Table

SHORT = 5
"""A prefix of fewer tokens is short."""
_ACTIVE = ("above_zero", "above_fraction", "carrying")


def active_section(m: Measurements, findings: tuple[Finding, ...]) -> Section:
    """How many memories of a layer are active."""
    e, n_layers, provenance = m.examples, m.triggers.n_layers, provenance_of(m)
    table: dict[str, list] = {"layer": list(range(n_layers))}
    for name in _ACTIVE:
        table |= columns(name, means(list(e[name]), m.seed))
    table |= boxes("active", list(e["above_zero"]))
    average = [float(v) for v in e["above_zero"].mean(axis=1)]
    least = int(np.argmin(average))
    n_memories = int(np.diff(m.triggers.bounds).mean())
    fraction = m.options.fraction
    comparison = ComparisonTable("active_published", "Active memories: here and published")
    comparison.add(
        "active memories, all layers",
        mean_of(e["above_zero"].mean(axis=0), seed=m.seed, share=True),
        None,
        "10 to 50 %",
    )
    comparison.add(
        "first layer",
        mean_of(e["above_zero"][0], seed=m.seed, share=True),
        None,
        "about 40 to 50 %, read off Fig. 7 (layers 1 to 5)",
    )
    comparison.add(
        "the layer with the fewest",
        mean_of(e["above_zero"][least], seed=m.seed, share=True),
        None,
        "10 to 15 %, layer 10 of 16",
    )
    comparison.add(
        "last layer", mean_of(e["above_zero"][-1], seed=m.seed, share=True), None, "15 to 20 %, read off Fig. 7"
    )
    comparison.add(
        "memories of one layer active at once",
        mean_of(e["above_zero"].mean(axis=0) * n_memories, seed=m.seed),
        None,
        "hundreds (of 4,096)",
        unit="memories",
    )
    return Section(
        "Active memories",
        (
            f"{len(m.positions):,} random prefixes, {n_memories:,} memories in a layer. The paper counts coefficients "
            "above 0, which is all there is for ReLU. For other activations there are two more counts: memories with "
            f"|m| of at least {fraction:g} of the layer's largest, and the smallest set that carries "
            f"{100 * CARRIED:.0f} % of the summed |m|·‖v‖.",
        ),
        (
            *comparison.exhibits(provenance),
            Exhibit(
                "active",
                Table("Share of memories that are active", table, provenance),
                percent=(*_ACTIVE, *(f"active_{q}" for q in QUANTILES)),
            ),
        ),
        (
            Figure(
                "fig7_active",
                "Fig. 7: memories with a coefficient above 0",
                "box",
                "active",
                "layer",
                ("active",),
                ("active",),
                "layer",
                "memories",
                percent=True,
                references=(published.ACTIVE,),
            ),
            Figure(
                "active_definitions",
                "Active memories by three definitions",
                "line",
                "active",
                "layer",
                _ACTIVE,
                ("above 0", f"at least {fraction:g} of the largest", f"carrying {100 * CARRIED:.0f} %"),
                "layer",
                "memories",
                percent=True,
                published=published.NOT_IN_PAPER,
            ),
        ),
        findings,
    )


def composition_section(m: Measurements, findings: tuple[Finding, ...]) -> Section:
    """Whether a layer's prediction is that of any of its memories."""
    e, n_layers, provenance, n = m.examples, m.triggers.n_layers, provenance_of(m), len(m.positions)

    def zero(claims: np.ndarray) -> list:
        return [share_of(int((~row).sum()), n) for row in claims]

    differs, active, output = zero(e["any_value"]), zero(e["any_active"]), zero(e["any_output"])
    stop, lengths = stop_words(m.lm), m.example_text.prefix_lengths(m.positions)
    gold = m.example_text.next_tokens(m.positions)
    agreeing = e["any_active"]
    layers, which = np.nonzero(agreeing)
    predicted = e["update"][layers, which]
    follows = gold[which]
    short = lengths < SHORT
    table = {
        "layer": list(range(n_layers)),
        **columns("differs_from_all", differs),
        **columns("differs_from_active", active),
        **columns("released_code", output),
        "agreeing_memories": [float(row[row > 0].mean()) if (row > 0).any() else 0.0 for row in e["agreeing"]],
        "stop_words": [_share(stop[e["update"][k][agreeing[k]]]) for k in range(n_layers)],
        "short_prefixes": [_share(short[agreeing[k]]) for k in range(n_layers)],
    }
    stops = share_of(int(stop[predicted].sum()), len(predicted))
    all_stops = share_of(int(stop[e["update"]].sum()), e["update"].size)
    known = follows >= 0
    gold_stops = share_of(int(stop[follows[known]].sum()), int(known.sum()))
    all_gold = share_of(int(stop[gold[gold >= 0]].sum()), int((gold >= 0).sum()))
    shorts = share_of(int(short[which].sum()), len(which))
    all_short = share_of(int(short.sum()), n)
    comparison = ComparisonTable("composition_published", "Layers against their memories: here and published")
    least = min(range(n_layers), key=lambda k: active[k].value)
    comparison.add(
        "least zero agreement of a layer, active memories",
        active[least],
        68,
        "“at least ~68 %” in every layer (Sec. 5.1)",
    )
    comparison.add(
        "least zero agreement of a layer, all memories", min(differs, key=lambda d: d.value), 68, "Sec. 5.1, Fig. 8"
    )
    comparison.add("agreeing cases whose agreed token is a stop word", stops, 60, "Sec. 5.1")
    comparison.add("all layers' predictions that are stop words", all_stops)
    comparison.add(
        "agreeing cases whose next token in the text is a stop word", gold_stops, 60, "Sec. 5.1 (the text allows both)"
    )
    comparison.add("all examples' next tokens that are stop words", all_gold)
    comparison.add(f"agreeing cases with fewer than {SHORT} tokens", shorts, 43, "Sec. 5.1")
    comparison.add(f"all examples with fewer than {SHORT} tokens", all_short)
    return Section(
        "Layers compose their memories",
        (
            "A layer's prediction is the first token of its update y (bias included); a memory's is that of its "
            "value. “All” compares with every memory of the layer, as the formula in the paper reads; “active” with "
            "those that have a coefficient (and, where it is negative, with what −v puts first); the released code "
            "compares with the first token of residual plus update instead. All are exact. A small vocabulary makes "
            "chance agreement with one of all memories likely: a layer has "
            f"{int(np.diff(m.triggers.bounds).mean()):,} memories here for {m.lm.d_vocab:,} tokens, in the paper "
            "4,096 for 267,744.",
        ),
        (
            *comparison.exhibits(
                provenance, "Agreeing cases: layer and example where an active memory agrees, layers pooled."
            ),
            Exhibit(
                "zero_agreement",
                Table("Examples in which the layer's prediction is that of no memory", table, provenance),
                percent=("differs_from_all", "differs_from_active", "released_code", "stop_words", "short_prefixes"),
            ),
        ),
        (
            Figure(
                "fig8_zero_agreement",
                "Fig. 8: the layer predicts what no memory does",
                "line",
                "zero_agreement",
                "layer",
                ("differs_from_all", "differs_from_active", "released_code"),
                ("than all memories", "than active ones", "as the released code"),
                "layer",
                "examples",
                percent=True,
                y_range=(0, 1),
                references=(published.ZERO,),
            ),
        ),
        findings,
    )


def _share(claims: np.ndarray) -> float:
    return float(claims.mean()) if len(claims) else float("nan")

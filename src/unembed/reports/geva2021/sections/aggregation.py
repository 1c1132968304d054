"""Section "Aggregating memories": Figs. 7 and 8, and what the agreeing cases are."""

from __future__ import annotations

import numpy as np

from unembed.reports.claims import row
from unembed.reports.document.intervals import columns, mean_of, share_of
from unembed.reports.document.model import Exhibit, Figure, Section
from unembed.reports.geva2021.examples import CARRIED
from unembed.reports.geva2021.formatting import Beside, boxes, means, percent, provenance_of, ranged, stop_words
from unembed.reports.geva2021.measurements import Measurements
from unembed.results import Table

SHORT = 5
"""A prefix of fewer tokens is short."""
_ACTIVE = ("above_zero", "above_fraction", "carrying")


def active_section(m: Measurements) -> Section:
    """How many memories of a layer are active."""
    e, n_layers, provenance = m.examples, m.triggers.n_layers, provenance_of(m)
    table: dict[str, list] = {"layer": list(range(n_layers))}
    for name in _ACTIVE:
        table |= columns(name, means(list(e[name]), m.seed))
    table |= boxes("active", list(e["above_zero"]))
    average = [float(v) for v in e["above_zero"].mean(axis=1)]
    low, high = min(average), max(average)
    least = int(np.argmin(average))
    n_memories = int(np.diff(m.triggers.bounds).mean())
    fraction = m.options.fraction
    beside = Beside("active_published", "Active memories: here and published")
    beside.add("active memories, all layers", mean_of(e["above_zero"].mean(axis=0), seed=m.seed), None, "10 to 50 %")
    beside.add(
        "first layer",
        mean_of(e["above_zero"][0], seed=m.seed),
        None,
        "about 40 to 50 %, read off Fig. 7 (layers 1 to 5)",
    )
    beside.add(
        "the layer with the fewest", mean_of(e["above_zero"][least], seed=m.seed), None, "10 to 15 %, layer 10 of 16"
    )
    beside.add("last layer", mean_of(e["above_zero"][-1], seed=m.seed), None, "15 to 20 %, read off Fig. 7")
    beside.add(
        "memories of one layer active at once",
        mean_of(e["above_zero"].mean(axis=0) * n_memories, seed=m.seed),
        None,
        "hundreds (of 4,096)",
        unit="memories",
    )
    return Section(
        "Active memories",
        (
            f"{len(m.positions):,} random prefixes, {n_memories:,} memories in a layer. The paper counts "
            "coefficients above 0, "
            "which is all there is for ReLU. For other activations two more counts stand beside it: memories with "
            "|m| of at "
            f"least {fraction:g} of the layer's largest, and the smallest set that carries {100 * CARRIED:.0f} % of "
            "the summed "
            "|m|·‖v‖.",
        ),
        (
            beside.exhibit(provenance),
            Exhibit("active", Table("Share of memories that are active", table, provenance), percent=_ACTIVE),
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
            ),
        ),
        (
            row(
                "Between 10 and 50 % of the memories are active in a typical example.",
                f"Between {percent(low)} and {percent(high)}, by layer.",
                bool(low >= 0.05 and high <= 0.6),
                "Sec. 5.1, Fig. 7",
            ),
            row(
                "Their number drops towards layer 10 of 16, where semantic patterns begin to prevail.",
                f"It is highest in layer {int(np.argmax(average))} ({percent(high)}) and lowest in layer {least} "
                f"({percent(low)}).",
                bool(0.4 <= least / (n_layers - 1) <= 0.8) if n_layers > 2 else None,
                "Sec. 5.1, Fig. 7",
            ),
        ),
    )


def composition_section(m: Measurements) -> Section:
    """Whether a layer's prediction is that of any of its memories."""
    e, n_layers, provenance, n = m.examples, m.triggers.n_layers, provenance_of(m), len(m.positions)

    def zero(claims: np.ndarray) -> list:
        return [share_of(int((~row).sum()), n) for row in claims]

    differs, active, output = zero(e["any_value"]), zero(e["any_active"]), zero(e["any_output"])
    stop, lengths = stop_words(m.lm), m.text.prefix_lengths(m.positions)
    gold = m.text.next_tokens(m.positions)
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
    beside = Beside("composition_published", "Layers against their memories: here and published")
    least = min(range(n_layers), key=lambda k: active[k].value)
    beside.add(
        "least zero agreement of a layer, active memories",
        active[least],
        68,
        "“at least ~68 %” in every layer (Sec. 5.1)",
    )
    beside.add(
        "least zero agreement of a layer, all memories", min(differs, key=lambda d: d.value), 68, "Sec. 5.1, Fig. 8"
    )
    beside.add("agreeing cases whose agreed token is a stop word", stops, 60, "Sec. 5.1")
    beside.add("all layers' predictions that are stop words", all_stops)
    beside.add(
        "agreeing cases whose next token in the text is a stop word", gold_stops, 60, "Sec. 5.1 (the text allows both)"
    )
    beside.add("all examples' next tokens that are stop words", all_gold)
    beside.add(f"agreeing cases with fewer than {SHORT} tokens", shorts, 43, "Sec. 5.1")
    beside.add(f"all examples with fewer than {SHORT} tokens", all_short)
    return Section(
        "Layers compose their memories",
        (
            "A layer's prediction is the first token of its update y (bias included); a memory's is that of its "
            "value. “All” "
            "compares with every memory of the layer, as the formula in the paper reads; “active” with those that "
            "have a "
            "coefficient (and, where it is negative, with what −v puts first); the released code compares with the "
            "first token "
            "of residual plus update instead. All are exact. A small vocabulary makes chance agreement with one of "
            "all memories "
            f"likely: here {int(np.diff(m.triggers.bounds).mean()):,} memories stand against {m.lm.d_vocab:,} "
            "tokens, in the "
            "paper 4,096 against 267,744.",
        ),
        (
            beside.exhibit(
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
            ),
        ),
        (
            row(
                "In at least 68 % of the examples the layer's prediction differs from every memory's.",
                f"With active memories in at least {ranged(active[least])} (layer {least}), with all in at least "
                f"{percent(min(d.value for d in differs))}.",
                bool(active[least].high >= 0.68),
                "Sec. 5.1, Fig. 8",
            ),
            row(
                "Where a memory agrees, the token is a common stop word in 60 % of the cases.",
                f"In {ranged(stops)}, against {percent(all_stops.value)} of all layers' predictions.",
                bool(0.45 <= stops.value <= 0.75) if len(predicted) else None,
                "Sec. 5.1",
            ),
            row(
                "and the prefix has fewer than five tokens in 43 %.",
                f"In {ranged(shorts)}, against {percent(all_short.value)} of all examples.",
                bool(shorts.low > all_short.high) if len(which) else None,
                "Sec. 5.1",
            ),
        ),
    )


def _share(claims: np.ndarray) -> float:
    return float(claims.mean()) if len(claims) else float("nan")

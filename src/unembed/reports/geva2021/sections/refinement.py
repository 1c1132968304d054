"""Section "Residual connections refine predictions": Figs. 9 to 11, and compositions of the last layer."""

from __future__ import annotations

import numpy as np

from unembed.reports.claims import row
from unembed.reports.document.intervals import columns, share_of
from unembed.reports.document.model import Exhibit, Figure, Section
from unembed.reports.geva2021.formatting import (
    Beside,
    boxes,
    first_upper,
    means,
    percent,
    prefix_text,
    provenance_of,
    ranged,
)
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.word_similarity import RELATED, by_wordnet, cosines, usual_cosine
from unembed.results import Table

CLASSES = ("residual", "agreement", "composition", "ffn", "joint")
_CLASS_NAMES = ("residual alone", "both agree", "neither: composition", "FFN alone", "both agree, output differs")


def breakdown(residual: np.ndarray, update: np.ndarray, output: np.ndarray) -> dict[str, np.ndarray]:
    """Which of the layer's two parts its output follows, for arrays of token ids.

    residual: o = r ≠ y. ffn: o = y ≠ r. agreement: o = r = y. composition: r ≠ y and o is neither. joint: r = y and o
    is another token, which no single softmax allows but norms and adaptive softmaxes do.
    """
    follows_r, follows_y, same = output == residual, output == update, residual == update
    return {
        "residual": follows_r & ~same,
        "agreement": follows_r & same,
        "composition": ~follows_r & ~follows_y & ~same,
        "ffn": follows_y & ~same,
        "joint": ~follows_r & same,
    }


def refinement_section(m: Measurements) -> Section:
    """When the residual already holds the prediction, and what each FFN makes of it."""
    e, n_layers, provenance, n = m.examples, m.triggers.n_layers, provenance_of(m), len(m.positions)
    final = e["output"][-1]
    match = e["residual"] == final
    # Settled: from this layer on every residual says what the model says.
    settled = np.logical_and.accumulate(match[::-1], axis=0)[::-1]
    matches = [share_of(int(row.sum()), n) for row in match]
    kinds = breakdown(e["residual"], e["update"], e["output"])
    table = {
        "layer": list(range(n_layers)),
        **columns("match", matches),
        **columns("settled", [share_of(int(row.sum()), n) for row in settled]),
        **columns("mean_probability", means(list(e["probability"]), m.seed)),
        **boxes("probability", list(e["probability"])),
    }
    parts = {
        "layer": list(range(n_layers)),
        **{kind: [float(row.mean()) for row in kinds[kind]] for kind in CLASSES},
        **columns("output_changes", [share_of(int(row.sum()), n) for row in e["output"] != e["residual"]]),
    }
    bottom = max(1, round(n_layers / 4)) if n_layers > 1 else 0
    upper = first_upper(n_layers)
    decided = matches[bottom]
    in_end = matches[-1]
    growth_above = (matches[-1].value - matches[upper].value) / max(n_layers - 1 - upper, 1)
    growth_below = (matches[upper].value - matches[0].value) / max(upper, 1)
    middle = [float(np.median(row)) for row in e["probability"]]
    residual_share = [float(row.mean()) for row in kinds["residual"]]
    changed = e["output"] != e["residual"]
    composed = share_of(int((kinds["composition"] | kinds["joint"])[changed].sum()), int(changed.sum()))
    beside = Beside("refinement_published", "Refinement: here and published")
    beside.add(
        f"decided in the bottom layers (residual entering FFN {bottom})", decided, 33, "“roughly a third” (Sec. 5.2)"
    )
    beside.add("residual equals the prediction, first layer", matches[0])
    beside.add("residual equals the prediction, last layer", in_end, None, "about 95 %, read off Fig. 9")
    beside.add("settled for good before the last FFN", share_of(int(settled[-1].sum()), n))
    low, high = min(residual_share), max(residual_share)
    beside.add(
        "output that follows the residual alone, least layer",
        _pick(kinds["residual"], low, n, m.seed),
        None,
        "60 to 85 %",
    )
    beside.add(
        "output that follows the residual alone, most",
        _pick(kinds["residual"], high, n, m.seed),
        None,
        "Fig. 11, by eye",
    )
    beside.add("changed outputs that are compositions", composed, None, "most of them (Sec. 5.2)")
    return Section(
        "Residual connections refine predictions",
        (
            f"{n:,} random prefixes. r is the residual that the FFN's update y is added to, o = r + y what leaves "
            "the layer, w the "
            f"model's final prediction; all are read in the basis “{m.options.basis}”, the residual that leaves the "
            "last layer "
            "as the model itself reads it. Breakdown: o follows r alone, y alone, both, or neither (a composition).",
        ),
        (
            beside.exhibit(provenance),
            Exhibit(
                "residual",
                Table("What the residual already says", table, provenance),
                "Settled: this layer's residual and all later ones say what the model says.",
                percent=("match", "settled", "mean_probability"),
            ),
            Exhibit(
                "breakdown", Table("What the output follows", parts, provenance), percent=(*CLASSES, "output_changes")
            ),
        ),
        (
            Figure(
                "fig9_match",
                "Fig. 9: the residual's first token is the prediction",
                "line",
                "residual",
                "layer",
                ("match", "settled"),
                ("equal", "equal from here on"),
                "layer",
                "examples",
                percent=True,
                y_range=(0, 1),
            ),
            Figure(
                "fig10_probability",
                "Fig. 10: probability the residual gives to the prediction",
                "box",
                "residual",
                "layer",
                ("probability",),
                ("probability",),
                "layer",
                "probability",
                y_range=(0, 1),
            ),
            Figure(
                "fig11_breakdown",
                "Fig. 11: what the layer's output follows",
                "stacked",
                "breakdown",
                "layer",
                CLASSES,
                _CLASS_NAMES,
                "layer",
                "examples",
                percent=True,
                y_range=(0, 1),
            ),
        ),
        (
            row(
                "Roughly a third of the predictions are decided in the bottom few layers.",
                f"In {ranged(decided)} the residual entering FFN {bottom} (a quarter of the way up) has the final "
                "prediction "
                "first; between 25 and 42 % counts as agreeing.",
                bool(0.25 <= decided.value <= 0.42),
                "Sec. 5.2, Fig. 9",
            ),
            row(
                "From layer 10 of 16 on this share grows fast.",
                f"By {100 * growth_above:.1f} points a layer from layer {upper} on, by {100 * growth_below:.1f} "
                "below it.",
                bool(growth_above > growth_below) if n_layers - 1 > upper else None,
                "Sec. 5.2, Fig. 9",
            ),
            row(
                "The residual's probability of the prediction grows through the layers.",
                f"Its median goes from {percent(middle[0])} in the first layer to {percent(middle[-1])} in the last.",
                bool(middle[-1] > middle[0]),
                "Sec. 5.2, Fig. 10",
            ),
            row(
                "In most examples a layer's output follows the residual (60 to 85 %).",
                f"Alone in {percent(low)} to {percent(high)}, by layer; with an agreeing update in "
                f"{percent(min(1 - c.value for c in _changes(changed, n, m.seed)))} to "
                f"{percent(max(1 - c.value for c in _changes(changed, n, m.seed)))}.",
                bool(np.median(residual_share) > 0.5),
                "Sec. 5.2, Fig. 11",
            ),
            row(
                "Where the output is another token, it is rarely the FFN's own but a compromise of both.",
                f"{ranged(composed)} of the changed outputs are compositions.",
                bool(composed.low > 0.5),
                "Sec. 5.2, Fig. 11",
            ),
        ),
    )


def _changes(changed: np.ndarray, n: int, seed: int) -> list:
    return [share_of(int(row.sum()), n) for row in changed]


def _pick(rows: np.ndarray, share: float, n: int, seed: int):  # noqa: ANN202
    row = rows[int(np.argmin(np.abs(rows.mean(axis=1) - share)))]
    return share_of(int(row.sum()), n)


def last_layer_section(m: Measurements) -> Section:
    """Compositions of the last layer: how far the new token is from the residual's."""
    e, provenance = m.examples, provenance_of(m)
    residual, update, output = (e[name][-1].astype(np.int64) for name in ("residual", "update", "output"))
    kinds = breakdown(residual, update, output)
    found = np.flatnonzero(kinds["composition"] | kinds["joint"])
    random = np.random.default_rng([m.seed, 5])
    chosen = np.sort(random.choice(found, min(m.options.compositions, len(found)), replace=False))
    before, after = residual[chosen], output[chosen]
    lin = by_wordnet(m.lm, before.tolist(), after.tolist())
    cosine = cosines(m.lm, before, after) if len(chosen) else np.zeros(0)
    usual = usual_cosine(m.lm, m.seed)
    related = (np.nan_to_num(lin, nan=0.0) >= RELATED) | (cosine >= usual)
    both_known = int((~np.isnan(lin)).sum())
    close = share_of(int(related.sum()), len(chosen))
    table = {
        "prefix_text": [prefix_text(m, p) for p in m.positions[chosen].tolist()],
        "residual_token": m.lm.token_strings(before.tolist()) if len(chosen) else [],
        "update_token": m.lm.token_strings(update[chosen].tolist()) if len(chosen) else [],
        "output_token": m.lm.token_strings(after.tolist()) if len(chosen) else [],
        "wordnet_similarity": [float(v) for v in lin],
        "embedding_cosine": [float(v) for v in cosine],
        "judged": ["related" if r else "distant" for r in related],
    }
    beside = Beside("last_layer_published", "Compositions of the last layer: here and published")
    beside.add("examples in which the last layer composes", share_of(len(found), len(output)))
    beside.add(
        "of these, semantically distant from the residual",
        share_of(len(chosen) - int(related.sum()), len(chosen)),
        66,
        "Sec. 5.2, by hand",
    )
    beside.add("of these, related", close, 34, "Sec. 5.2, by hand")
    return Section(
        "Compositions of the last layer",
        (
            f"{len(chosen)} random examples in which the last layer's output is neither the residual's nor the "
            "update's first token. "
            "The paper judged by hand whether the new token is related to the residual's; here two tokens are "
            "related if their "
            f"WordNet senses have a Lin similarity of at least {RELATED:g} (both words are in WordNet in "
            f"{both_known} cases) or "
            f"their embeddings a cosine of at least {usual:.2f}, which one in a hundred random pairs exceeds.",
        ),
        (
            beside.exhibit(provenance),
            Exhibit("compositions", Table("Compositions of the last layer", table, provenance), folded=True),
        ),
        (),
        (
            row(
                "Of 100 last-layer compositions 66 go to a semantically distant token and 34 to a related one.",
                f"{percent(1 - close.value)} distant, {percent(close.value)} related, of {len(chosen)}, by rule.",
                bool(close.low <= 0.34 <= close.high or (close.value < 0.5 and close.value > 0.15))
                if len(chosen)
                else None,
                "Sec. 5.2",
            ),
        ),
    )

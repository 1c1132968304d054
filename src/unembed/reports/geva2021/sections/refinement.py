"""Section "Residual connections refine predictions": Figs. 9 to 11, and compositions of the last layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from unembed.document.intervals import columns, share_of
from unembed.document.model import Exhibit, Figure, Finding, Section
from unembed.reports.geva2021 import published
from unembed.reports.geva2021.formatting import (
    ComparisonTable,
    boxes,
    means,
    prefix_text,
    provenance_of,
)
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.word_similarity import RELATED, by_wordnet, cosines, share_of_closer
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


def refinement_section(m: Measurements, findings: tuple[Finding, ...]) -> Section:
    """When the residual already holds the prediction, and what each FFN makes of it."""
    e, n_layers, provenance, n = m.examples, m.triggers.n_layers, provenance_of(m), len(m.positions)
    final = e["output"][-1]
    match = e["residual"] == final
    # Settled: from this layer on every residual predicts what the model predicts.
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
    decided = matches[bottom]
    in_end = matches[-1]
    residual_share = [float(row.mean()) for row in kinds["residual"]]
    changed = e["output"] != e["residual"]
    composed = share_of(int((kinds["composition"] | kinds["joint"])[changed].sum()), int(changed.sum()))
    comparison = ComparisonTable("refinement_published", "Refinement: here and published")
    comparison.add(
        f"decided in the bottom layers (residual entering FFN {bottom})", decided, 33, "“roughly a third” (Sec. 5.2)"
    )
    comparison.add("residual equals the prediction, first layer", matches[0])
    comparison.add("residual equals the prediction, last layer", in_end, None, "about 95 %, read off Fig. 9")
    comparison.add("settled for good before the last FFN", share_of(int(settled[-1].sum()), n))
    low, high = min(residual_share), max(residual_share)
    comparison.add(
        "output that follows the residual alone, least layer",
        _pick(kinds["residual"], low, n, m.seed),
        None,
        "60 to 85 %",
    )
    comparison.add(
        "output that follows the residual alone, most",
        _pick(kinds["residual"], high, n, m.seed),
        None,
        "Fig. 11, by eye",
    )
    comparison.add("changed outputs that are compositions", composed, None, "most of them (Sec. 5.2)")
    return Section(
        "Residual connections refine predictions",
        (
            f"{n:,} random prefixes. r is the residual that the FFN's update y is added to, o = r + y what leaves the "
            f"layer, w the model's final prediction; all are read in the basis “{m.options.basis}”, the residual that "
            "leaves the last layer as the model itself reads it. Breakdown: o follows r alone, y alone, both, or "
            "neither (a composition).",
        ),
        (
            *comparison.exhibits(provenance),
            Exhibit(
                "residual",
                Table("What the residual already predicts", table, provenance),
                "Settled: this layer's residual and all later ones predict what the model predicts.",
                percent=(
                    "match",
                    "settled",
                    "mean_probability",
                    *(f"probability_q{q}" for q in ("05", "25", "50", "75", "95")),
                ),
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
                references=(published.MATCH,),
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
                references=(published.PROBABILITY,),
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
                references=(published.RESIDUAL,),
            ),
        ),
        findings,
    )


def _pick(rows: np.ndarray, share: float, n: int, seed: int):  # noqa: ANN202
    row = rows[int(np.argmin(np.abs(rows.mean(axis=1) - share)))]
    return share_of(int(row.sum()), n)


@dataclass(frozen=True, eq=False)
class Compositions:
    """Sampled compositions of the last layer, each judged by the rules."""

    found: Int[np.ndarray, " composition"]
    """Examples in which the last layer composes."""
    chosen: Int[np.ndarray, " pair"]
    """Those that are judged."""
    wordnet: Float[np.ndarray, " pair"]
    cosine: Float[np.ndarray, " pair"]
    related: Bool[np.ndarray, " pair"]
    known: Bool[np.ndarray, " pair"]
    """Whether the rules can decide."""


def judge_compositions(m: Measurements) -> Compositions:
    """Random compositions of the last layer, and whether the new token is related to the residual's.

    Two tokens are related where WordNet relates them or where their embeddings are closer than 99 % of random pairs of
    the same frequencies; they are distant where WordNet has both and does not relate them, or where their embeddings
    are no closer than 90 % of such pairs. Otherwise it is undecided.
    """
    e = m.examples
    before_all, update, output = (e[name][-1].astype(np.int64) for name in ("residual", "update", "output"))
    kinds = breakdown(before_all, update, output)
    found = np.flatnonzero(kinds["composition"] | kinds["joint"])
    random = np.random.default_rng([m.seed, 5])
    chosen = np.sort(random.choice(found, min(m.options.compositions, len(found)), replace=False))
    before, after = before_all[chosen], output[chosen]
    lin = by_wordnet(m.lm, before.tolist(), after.tolist())
    cosine = cosines(m.lm, before, after) if len(chosen) else np.zeros(0)
    counts = np.bincount(m.example_text.token, minlength=m.lm.d_vocab)
    rank = share_of_closer(m.lm, before, after, cosine, counts, m.seed)
    related = (np.nan_to_num(lin, nan=0.0) >= RELATED) | (rank >= 0.99)
    known = related | ~np.isnan(lin) | (rank < 0.9)
    return Compositions(found, chosen, lin, cosine, related, known)


def last_layer_section(m: Measurements, findings: tuple[Finding, ...]) -> Section:
    """Compositions of the last layer: how far the new token is from the residual's."""
    e, provenance = m.examples, provenance_of(m)
    judged = judge_compositions(m)
    found, chosen, related, known = judged.found, judged.chosen, judged.related, judged.known
    before, update, output = (e[name][-1].astype(np.int64) for name in ("residual", "update", "output"))
    before, after = before[chosen], output[chosen]
    lin, cosine = judged.wordnet, judged.cosine
    both_known, n_known = int((~np.isnan(lin)).sum()), int(known.sum())
    close = share_of(int(related.sum()), n_known)
    table = {
        "prefix_text": [prefix_text(m, p, example=True) for p in m.positions[chosen].tolist()],
        "residual_token": m.lm.token_strings(before.tolist()) if len(chosen) else [],
        "update_token": m.lm.token_strings(update[chosen].tolist()) if len(chosen) else [],
        "output_token": m.lm.token_strings(after.tolist()) if len(chosen) else [],
        "wordnet_similarity": [float(v) for v in lin],
        "embedding_cosine": [float(v) for v in cosine],
        "judged": ["related" if r else "distant" if k else "unknown" for r, k in zip(related, known, strict=True)],
    }
    comparison = ComparisonTable("last_layer_published", "Compositions of the last layer: here and published")
    comparison.add("examples in which the last layer composes", share_of(len(found), len(output)))
    comparison.add(
        "of these, semantically distant from the residual",
        share_of(n_known - int(related.sum()), n_known),
        66,
        "Sec. 5.2, by hand",
    )
    comparison.add("of these, related", close, 34, "Sec. 5.2, by hand")
    return Section(
        "Compositions of the last layer",
        (
            f"{len(chosen)} random examples in which the last layer's output is neither the residual's nor the "
            "update's first token. The paper judged by hand whether the new token is related to the residual's; here "
            f"two tokens are related if their WordNet senses have a Lin similarity of at least {RELATED:g} (both "
            f"words are in WordNet in {both_known} cases) or their embeddings are closer than 99 % of random pairs of "
            "the same frequencies; distant if WordNet has both and does not relate them, or if they are no closer "
            f"than 90 % of such pairs. {len(chosen) - n_known} pairs are undecided.",
        ),
        (
            *comparison.exhibits(provenance),
            Exhibit("compositions", Table("Compositions of the last layer", table, provenance), folded=True),
        ),
        (),
        findings,
    )

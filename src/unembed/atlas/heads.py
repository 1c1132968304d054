"""The heads of an atlas: each head's role on repeated random tokens, and the word relation that its weights encode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unembed.atlas.lines import rows_of
from unembed.attention.behaviour.head_scores import KINDS, head_scores, role_of
from unembed.attention.circuits import Circuits
from unembed.attention.text.relations import known_relations, relations_of_heads
from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.names import head_name
from unembed.results import format_percent

SIGNIFICANT = 0.05
"""Largest p-value, corrected for all heads and relations, at which a head's relation is named."""
HEAD_COLUMNS = {
    "head": "Name, such as L5H3",
    "layer": "Layer, from 0",
    "index": "Number of the head in its layer, from 0",
    "role": "Its main attention on random tokens repeated twice, where the mean is at least 0.3; null where none is",
    "relation": "The shipped relation of which it maps most pairs by its weights; null where chance explains them",
    "relation_share": "The share of the pairs whose target is among the ten tokens that the head raises most",
    "relation_control": "The same share with the targets of other pairs",
    **{kind: "Mean of this score over random sequences; see unembed heads" for kind in KINDS},
}
"""The meaning of every column of `heads.parquet`."""


def head_columns(lm: Decoder, seed: int = 0) -> dict[str, list[Any]]:
    """Return the columns of `HEAD_COLUMNS`, with one entry per attention head; empty if the model has no such heads."""
    try:
        scores = head_scores(lm, seed)
    except Unsupported:
        return {name: [] for name in HEAD_COLUMNS}
    try:
        wanted = known_relations(lm)
        relations = relations_of_heads(Circuits(lm), wanted, seed=seed) if wanted else []
    except Unsupported:
        relations = []
    found: dict[str, list[Any]] = {name: [] for name in HEAD_COLUMNS}
    for layer, head in scores.places():
        mapped = [one for one in relations if float(one.p_value[layer, head]) <= SIGNIFICANT]
        best = max(mapped, key=lambda one: float(one.share[layer, head] - one.shuffled[layer, head]), default=None)
        row = {
            "head": head_name(layer, head),
            "layer": layer,
            "index": head,
            "role": role_of(scores, layer, head) or None,
            "relation": None if best is None else best.relation,
            "relation_share": None if best is None else float(best.share[layer, head]),
            "relation_control": None if best is None else float(best.shuffled[layer, head]),
            **{kind: float(scores[kind][layer, head]) for kind in KINDS},
        }
        for name, value in row.items():
            found[name].append(value)
    return found


def head_sentences(path: Path) -> dict[tuple[int, int], str]:
    """Read the description of each attention head in an atlas: its role, its relation, or both.

    The keys of the result are pairs of layer and head. A relation is followed by the share of word pairs for which the
    head's weights encode it.

    Raises:
        InvalidInput: the file cannot be read.
    """
    rows = rows_of(path, ["layer", "index", "role", "relation", "relation_share"])
    rows.sort(key=lambda row: -(row["relation_share"] or 0.0))
    found = {(row["layer"], row["index"]): _sentence(row) for row in rows}
    return {place: text for place, text in found.items() if text}


def _sentence(row: dict[str, Any]) -> str:
    share = format_percent(row["relation_share"] or 0.0, 0)
    relation = row["relation"] and f"{row['relation']}: {share} of the pairs, by its weights"
    return "; ".join(part for part in (row["role"], relation) if part)

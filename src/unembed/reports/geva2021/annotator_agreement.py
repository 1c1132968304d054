"""Measure how well the rules that find patterns agree with people who labelled the same prefixes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unembed.annotation.agreement import label_agreement
from unembed.annotation.rules import NONE, RULES
from unembed.corpus.token_stream import TokenStream
from unembed.names import Pole
from unembed.reports.geva2021.patterns import Finder, Pattern
from unembed.reports.geva2021.triggers import KeyTriggers

RULE = "rules"
"""The name under which the rules appear in the list of annotators."""


def labels_of(author: str, layer: int, index: int, found: Sequence[Pattern]) -> list[dict[str, Any]]:
    """Return the patterns of a key as labels of the index: one for each pattern, or a single one for "no pattern"."""
    notes: list[tuple[str, dict[str, Any]]] = [
        (p.what, {"pattern": p.kind, "members": sorted(p.members)}) for p in found
    ] or [(NONE, {"pattern": None, "members": []})]
    shared = {"kind": "key", "layer": layer, "index": index, "author": author}
    return [{**shared, "label": label, "notes": note} for label, note in notes]


def rule_labels(
    finder: Finder, text: TokenStream, triggers: KeyTriggers, keys: Iterable[tuple[int, int]]
) -> list[dict[str, Any]]:
    """Return the patterns that the rules find in the prefixes that people saw, as labels for an index.

    Args:
        keys: layer and key number of each key; see `KeyTriggers`.
    """
    found: list[dict[str, Any]] = []
    for layer, key in keys:
        places = triggers.positions[triggers.row(layer, key)][: RULES["key"].shown].tolist()
        prefixes = [text.prefix(p, special=False) for p in places if p >= 0]
        found += labels_of(RULE, layer, key, finder.patterns(prefixes))
    return found


def compared(
    labels: Iterable[Mapping[str, Any]], finder: Finder, text: TokenStream, triggers: KeyTriggers
) -> dict[str, list[Any]]:
    """Return Cohen's kappa on each question for each pair of annotators; the rules count as an annotator.

    Args:
        labels: rows of `Index.labels()`; only those that the annotation screen stored for keys are used. If there are
            none, the columns are empty.
    """
    people = [row for row in labels if row["kind"] == "key" and "pattern" in (row["notes"] or {})]
    of_key = [{**row, "index": _key_of(row, triggers)} for row in people]
    keys = sorted({(int(row["layer"]), int(row["index"])) for row in of_key})
    return kappas([*of_key, *rule_labels(finder, text, triggers, keys)]) if keys else kappas([])


def _key_of(row: Mapping[str, Any], triggers: KeyTriggers) -> int:
    pole: Pole = "negative" if (row["notes"] or {}).get("pole") == "negative" else "positive"
    return triggers.key(int(row["layer"]), int(row["index"]), pole)


def kappas(labels: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the columns of a table with Cohen's kappa on each question for each pair of annotators."""
    rows = [
        (found.question, pair, found.items, math.nan if kappa is None else kappa)
        for found in label_agreement(labels)
        for pair, kappa in found.pairs.items()
    ]
    names = ("question", "pair", "items", "kappa")
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}

"""How far the rules for patterns agree with people: the labels of an index, and the rules' own on the same prefixes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from unembed.concepts.agreed import agreement
from unembed.concepts.annotating import NONE, RULES
from unembed.reports.geva2021.patterns import Finder
from unembed.reports.geva2021.text import Text
from unembed.reports.geva2021.triggers import KeyTriggers

RULE = "rules"
"""The name under which the rules take part."""


def rule_labels(
    finder: Finder, text: Text, triggers: KeyTriggers, keys: Iterable[tuple[int, int]]
) -> list[dict[str, Any]]:
    """What the rules find in the prefixes that people were shown, as labels of the annotation store."""
    found = []
    for layer, index in keys:
        places = triggers.positions[triggers.row(layer, index)][: RULES["key"].shown].tolist()
        prefixes = [text.prefix(p)[text.lead(p) :] for p in places if p >= 0]
        notes: list[tuple[str, dict[str, Any]]] = [
            (p.what, {"pattern": p.kind, "members": sorted(p.members)}) for p in finder.patterns(prefixes)
        ]
        for label, note in notes or [(NONE, {"pattern": None, "members": []})]:
            found.append({"kind": "key", "layer": layer, "index": index, "label": label, "author": RULE, "notes": note})
    return found


def compared(
    labels: Iterable[Mapping[str, Any]], finder: Finder, text: Text, triggers: KeyTriggers
) -> dict[str, np.ndarray]:
    """Cohen's kappa of each two annotators, the rules among them, on each question; empty arrays without labels.

    Args:
        labels: rows of `Index.labels()`; only those that the annotation screen stored for keys count.
        finder: the rules.
        text: of the index.
        triggers: of the index.
    """
    people = [row for row in labels if row["kind"] == "key" and "pattern" in (row["notes"] or {})]
    keys = sorted({(int(row["layer"]), int(row["index"])) for row in people})
    rows: list[tuple[str, str, int, float]] = []
    if keys:
        for question in agreement([*people, *rule_labels(finder, text, triggers, keys)]):
            for pair, kappa in question.pairs.items():
                rows.append((question.question, pair, question.items, np.nan if kappa is None else kappa))
    names = ("question", "pair", "items", "kappa")
    kinds: tuple[Any, ...] = (np.str_, np.str_, np.int64, np.float64)
    return {
        name: np.array([row[i] for row in rows], dtype=kind)
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
    }

"""The atlas as the page receives it: small, so that a map of 50,000 values is read in a moment and cached.

A body is gzip of: the length of a header (4 bytes, little-endian); the header, as JSON; then each column that the
header names, one unsigned number for each value, in four planes: the lowest byte of all values, then the next one.
Positions are steps from the middle of a value's island, a fifth of the distance between neighbours.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from unembed.index import AtlasView

SHOWN_TOKENS = 2
"""Promoted tokens of each value; the card of a value has more."""
STEPS = 5
"""Steps of a position between two neighbours."""
LEVELS_A_DECADE = 12
LEAST_DENSITY = 1e-5


@dataclass(frozen=True)
class PackedAtlas:
    """A body, and a name that changes with its content."""

    version: str
    body: bytes


def pack(view: AtlasView) -> PackedAtlas:
    """Return the map without what no reader sees: positions and densities are rounded, two tokens stand for a value."""
    top = [row[:SHOWN_TOKENS] for row in view.top]
    ranked = [i for i, _ in Counter(i for row in top for i in row).most_common()]  # small numbers are frequent
    rank = {token: n for n, token in enumerate(ranked)}
    step = _step(view)
    cluster = np.asarray(view.cluster)
    columns = {
        "layer": np.asarray(view.layer),
        "index": np.asarray(view.index),
        "cluster": cluster,
        "x": _steps(np.asarray(view.x), np.asarray([one.x for one in view.islands])[cluster], step),
        "y": _steps(np.asarray(view.y), np.asarray([one.y for one in view.islands])[cluster], step),
        "kind": np.asarray(view.kind),
    }
    if view.density is not None:
        columns["density"] = _levels(np.asarray(view.density))
    for k in range(min(SHOWN_TOKENS, *(len(row) for row in top))):
        columns[f"top{k}"] = np.asarray([rank[row[k]] for row in top])
    header: dict[str, Any] = {
        "schema": view.schema,
        "n_values": view.n_values,
        "n": len(view.x),
        "step": step,
        "densities": {"least": LEAST_DENSITY, "levels_a_decade": LEVELS_A_DECADE},
        "kinds": view.kinds,
        "tokens": [view.tokens[i] for i in ranked],
        "islands": [vars(one) for one in view.islands],
        "best": [vars(one) for one in view.best],
        "provenance": view.provenance,
        "columns": list(columns),
    }
    head = json.dumps(header, separators=(",", ":")).encode()
    raw = len(head).to_bytes(4, "little") + head + b"".join(_planes(one) for one in columns.values())
    return PackedAtlas(hashlib.blake2b(raw, digest_size=12).hexdigest(), gzip.compress(raw, 9, mtime=0))


def _step(view: AtlasView) -> float:
    """Return the length of a step on the map: a fifth of the distance between neighbours, which all islands share."""
    largest = max(view.islands, key=lambda one: one.size)
    rings = np.ceil((np.sqrt(max(0, (largest.size - 1) / 3 * 4 + 1)) - 1) / 2)
    return float(largest.radius / (rings + 0.9) / STEPS)


def _steps(at: np.ndarray, middle: np.ndarray, step: float) -> Int[np.ndarray, " value"]:
    """Return whole steps from the middle, without a sign: 0, -1, 1, -2, 2 become 0, 1, 2, 3, 4."""
    steps = np.round((at - middle) / step).astype(np.int64)
    return np.where(steps < 0, -2 * steps - 1, 2 * steps)


def _levels(density: np.ndarray) -> Int[np.ndarray, " value"]:
    """Return densities on a logarithmic scale; 0 for a value that is never active."""
    levels = np.log10(np.maximum(density, LEAST_DENSITY) / LEAST_DENSITY) * LEVELS_A_DECADE
    return np.where(density > 0, 1 + np.round(levels).astype(np.int64), 0)


def _planes(column: np.ndarray) -> bytes:
    """Return numbers below 2³² byte by byte: the planes of equal bytes compress to nothing."""
    return column.astype("<u4").view(np.uint8).reshape(-1, 4).T.tobytes()

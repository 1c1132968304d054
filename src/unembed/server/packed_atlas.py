"""Encode the atlas (a map of all value vectors) in a compact binary form, which the page loads fast and caches.

The format, compressed by gzip: the length of the header (4 bytes, little-endian); the header as JSON; then the columns
that the header names. A column has one unsigned 32-bit integer for each value vector, stored as four planes: first the
lowest bytes of all integers, then the second lowest, and so on. A position is an integer number of steps from the
middle of the vector's cluster on the map (its "island"); a step is a third of the distance between neighbours.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from unembed import __version__
from unembed.index import AtlasView, cache_folder
from unembed.jacobian import lens_identity
from unembed.models import weights_checksum

if TYPE_CHECKING:
    from unembed.language_model import LanguageModel

SHOWN_TOKENS = 2
"""Number of promoted tokens to send for each value vector; the page requests more when a vector is selected."""
STEPS = 3
"""Number of position steps between two neighbours on the map."""
LEVELS_A_DECADE = 6
LEAST_DENSITY = 1e-5


@dataclass(frozen=True)
class PackedAtlas:
    """An encoded atlas, and a hash of its content."""

    version: str
    body: bytes


def stored_path(lm: LanguageModel) -> Path:
    """Return the path at which the atlas of a model without an index is stored.

    The name of the file identifies the model's weights, its lens, and the version of this package.
    """
    return cache_folder() / "atlases" / f"{weights_checksum(lm)}-{lens_identity(lm)}-{__version__}.gz"


def stored_atlas(path: Path) -> PackedAtlas | None:
    """Return the atlas in a file; None if there is none, or a damaged one."""
    try:
        body = path.read_bytes()
        return PackedAtlas(_hash(gzip.decompress(body)), body)
    except (OSError, EOFError, zlib.error):
        return None


def _hash(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=12).hexdigest()


def pack(view: AtlasView) -> PackedAtlas:
    """Encode an atlas. Positions and densities are rounded; of each value vector's top tokens, only two are stored."""
    top = [row[:SHOWN_TOKENS] for row in view.top]
    # Tokens are sorted by text, because gzip compresses a list better if similar texts are adjacent.
    ranked = sorted({i for row in top for i in row}, key=lambda i: view.tokens[i].strip().lower())
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
        "best_lens": view.best_lens,
        "provenance": view.provenance,
        "columns": list(columns),
    }
    head = json.dumps(header, separators=(",", ":")).encode()
    raw = len(head).to_bytes(4, "little") + head + b"".join(_planes(one) for one in columns.values())
    return PackedAtlas(_hash(raw), gzip.compress(raw, 9, mtime=0))


def _step(view: AtlasView) -> float:
    """Return the length of a position step: a third of the distance between neighbours, equal in all islands."""
    largest = max(view.islands, key=lambda one: one.size)
    rings = np.ceil((np.sqrt(max(0, (largest.size - 1) / 3 * 4 + 1)) - 1) / 2)
    return float(largest.radius / (rings + 0.9) / STEPS)


def _steps(at: np.ndarray, middle: np.ndarray, step: float) -> Int[np.ndarray, " value"]:
    """Return positions as numbers of steps from the middle, encoded as unsigned integers.

    The numbers 0, -1, 1, -2, 2 become 0, 1, 2, 3, 4.
    """
    steps = np.round((at - middle) / step).astype(np.int64)
    return np.where(steps < 0, -2 * steps - 1, 2 * steps)


def _levels(density: np.ndarray) -> Int[np.ndarray, " value"]:
    """Return densities (shares of tokens on which a memory is active) on a logarithmic scale; 0 for density 0."""
    levels = np.log10(np.maximum(density, LEAST_DENSITY) / LEAST_DENSITY) * LEVELS_A_DECADE
    return np.where(density > 0, 1 + np.round(levels).astype(np.int64), 0)


def _planes(column: np.ndarray) -> bytes:
    """Return the bytes of 32-bit integers: the lowest byte of every integer, then the second byte of every integer, ...

    Bytes in this order compress well.
    """
    return column.astype("<u4").view(np.uint8).reshape(-1, 4).T.tobytes()

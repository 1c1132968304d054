"""How an index stands: what it is of, how far its build has come, and whether its files are what was written."""

from __future__ import annotations

from typing import Any

from unembed.index.index_files import Contents
from unembed.index.labels import Labels
from unembed.index.manifest import fault
from unembed.results import Table


def status(held: Contents) -> dict[str, Any]:
    """See `Index.status`."""
    manifest = held.manifest
    parts: dict[str, int] = {}
    for entry in manifest.files:
        parts[entry.part] = parts.get(entry.part, 0) + entry.size
    return {
        "path": str(held.path),
        "state": manifest.state,
        "provenance": held.provenance.to_dict(),
        "weights": manifest.weights,
        "settings": dict(manifest.settings),
        "layers": len(manifest.layers),
        "keys": held.n_keys,
        "poles": list(held.trigger_lists) if manifest.has("triggers") else [],
        "facts": dict(manifest.facts),
        "parts": parts,
        "bytes": sum(parts.values()),
        "labels": len(Labels(held.path).rows(of="all")),
    }


def files(held: Contents) -> Table:
    """See `Index.verify`."""
    found = held.manifest.files
    columns = {
        "file": [entry.path for entry in found],
        "part": [entry.part for entry in found],
        "bytes": [entry.size for entry in found],
        "fault": [fault(held.path, entry) for entry in found],
    }
    return held.table(f"Files of index {held.path}", columns)

"""The state of an index: model and corpus, progress of its build, integrity of its files."""

from __future__ import annotations

from typing import Any

from unembed.index.index_files import IndexFiles
from unembed.index.labels import Labels
from unembed.index.manifest import fault
from unembed.results import Table


def status(files: IndexFiles) -> dict[str, Any]:
    """See `Index.status`."""
    manifest = files.manifest
    parts: dict[str, int] = {}
    for entry in manifest.files:
        parts[entry.part] = parts.get(entry.part, 0) + entry.size
    return {
        "path": str(files.path),
        "state": manifest.state,
        "provenance": files.provenance.to_dict(),
        "weights": manifest.weights,
        "settings": dict(manifest.settings),
        "layers": len(manifest.layers),
        "keys": files.n_keys,
        "poles": list(files.trigger_lists) if manifest.has("triggers") else [],
        "facts": dict(manifest.facts),
        "parts": parts,
        "bytes": sum(parts.values()),
        "labels": len(Labels(files.path).rows(of="all")),
    }


def verify(files: IndexFiles) -> Table:
    """See `Index.verify`."""
    entries = files.manifest.files
    columns = {
        "file": [entry.path for entry in entries],
        "part": [entry.part for entry in entries],
        "bytes": [entry.size for entry in entries],
        "fault": [fault(files.path, entry) for entry in entries],
    }
    return files.table(f"Files of index {files.path}", columns)

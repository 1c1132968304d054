"""Ready indexes: indexes in the cache folder, where traces and the explorer look for them.

The name of the folder contains the weights, the corpus and the layout, so that it is never used for a changed model,
another corpus or another version.
"""

from __future__ import annotations

from pathlib import Path

from unembed.corpus import Corpus
from unembed.errors import IndexFault
from unembed.index.index import Index
from unembed.index.manifest import SCHEMA, FileEntry, read_manifest
from unembed.models.decoder import Decoder
from unembed.models.fingerprint import weights_fingerprint
from unembed.results.cache import cache_folder


def cached_path(lm: Decoder, corpus: Corpus) -> Path:
    """Where the ready index of a model and a corpus is built."""
    return cache_folder() / f"{weights_fingerprint(lm)[:16]}-{corpus.fingerprint}-{SCHEMA}"


def cached_index(lm: Decoder) -> Index | None:
    """A complete ready index of a model; the newest where there are several, None where there is none.

    The weights are read only if an index names this model.
    """
    candidates = []
    for path in cache_folder().glob("*/manifest.json"):
        try:
            manifest = read_manifest(path.parent)
        except IndexFault:
            continue  # another version, or damaged
        is_complete = manifest.state == "complete" and all(_exists(path.parent, entry) for entry in manifest.files)
        if is_complete and manifest.provenance.model == lm.name:
            candidates.append((path.stat().st_mtime, path.parent))
    for _, path in sorted(candidates, reverse=True):
        index = Index.open(path)
        if index.misfit(lm) is None:
            index.attach(lm)
            return index
    return None


def _exists(folder: Path, entry: FileEntry) -> bool:
    try:
        return (folder / entry.path).stat().st_size == entry.size
    except OSError:
        return False

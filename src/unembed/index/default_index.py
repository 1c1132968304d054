"""Indexes that are kept ready: where they lie, and which of them is of a model.

A ready index lies in a folder named after the weights, the corpus and the layout, so that a changed model, another
corpus or another version never uses it.
"""

from __future__ import annotations

import os
from pathlib import Path

from unembed.corpus import Corpus
from unembed.errors import IndexFault
from unembed.index.index import Index
from unembed.index.manifest import SCHEMA, FileEntry, read_manifest
from unembed.models.decoder import Decoder
from unembed.models.fingerprint import weights_fingerprint

VARIABLE = "UNEMBED_CACHE"


def cache_folders() -> list[Path]:
    """Where ready indexes are looked for; the first is where they are built.

    `$UNEMBED_CACHE` if it is set, else `.cache/unembed` here where there is one, and `~/.cache/unembed`.
    """
    if chosen := os.environ.get(VARIABLE):
        return [Path(chosen)]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unembed"
    here = Path(".cache/unembed")
    return [here, home] if here.is_dir() else [home]


def cached_path(lm: Decoder, corpus: Corpus) -> Path:
    """Where the ready index of a model and a corpus is built."""
    return cache_folders()[0] / f"{weights_fingerprint(lm)[:16]}-{corpus.fingerprint}-{SCHEMA}"


def cached_index(lm: Decoder) -> Index | None:
    """A complete ready index of a model; the newest where there are several, None where there is none.

    The weights are read only if an index names this model.
    """
    candidates = []
    for folder in cache_folders():
        for path in folder.glob("*/manifest.json"):
            try:
                manifest = read_manifest(path.parent)
            except IndexFault:
                continue  # of another version, or damaged: as good as none
            whole = manifest.state == "complete" and all(_is_there(path.parent, entry) for entry in manifest.files)
            if whole and manifest.provenance.model == lm.name:
                candidates.append((path.stat().st_mtime, path.parent))
    for _, path in sorted(candidates, reverse=True):
        index = Index.open(path)
        if index.misfit(lm) is None:
            index.attach(lm)
            return index
    return None


def _is_there(folder: Path, entry: FileEntry) -> bool:
    try:
        return (folder / entry.path).stat().st_size == entry.size
    except OSError:
        return False

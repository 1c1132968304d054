"""Default indexes: they are in the cache folder, where `unembed trace` and the explorer find them.

The name of an index's folder contains the fingerprints of the weights and of the corpus and the version of the layout,
so that the index is never used for a changed model, another corpus or another layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from unembed.errors import IndexFault
from unembed.index.index import Index
from unembed.index.manifest import SCHEMA, FileEntry, Manifest, read_manifest
from unembed.results.cache import cache_folder

if TYPE_CHECKING:  # so that an index can be found by its weights' fingerprint without torch
    from unembed.corpus import Corpus
    from unembed.models.decoder import Decoder


def cached_path(lm: Decoder, corpus: Corpus) -> Path:
    """Return the path of a model's default index over a corpus."""
    from unembed.models.fingerprint import weights_fingerprint

    return cache_folder() / f"{weights_fingerprint(lm)[:16]}-{corpus.fingerprint}-{SCHEMA}"


def ready_corpus() -> Corpus:
    """Return the corpus of the shipped model's default index: twelve WikiText articles, detokenized."""
    from unembed.corpus import open_corpus

    return open_corpus(detokenize=True, max_documents=12)


def build_ready_index(lm: Decoder, *, progress: Callable[[str, int, int | None], None] | None = None) -> Index:
    """Build or continue the default index of a model over `ready_corpus`, in the cache folder.

    Raises:
        IndexFault: another process is building it.
        UnembedError: the cache folder cannot be written to.
    """
    corpus = ready_corpus()
    return Index.build(lm, corpus, cached_path(lm, corpus), progress=progress)


def cached_index(lm: Decoder) -> Index | None:
    """Return a complete default index of a model: the newest if there are several, None if there is none.

    The weights are read only if an index names this model.
    """
    for path in _ready(lambda manifest: manifest.provenance.model == lm.name):
        index = Index.open(path)
        if index.misfit(lm) is None:
            index.attach(lm)
            return index
    return None


def cached_index_of_weights(weights: str) -> Index | None:
    """Return the newest complete default index of a model by the fingerprint of its weights; None if there is none."""
    path = next(_ready(lambda manifest: manifest.weights == weights), None)
    return None if path is None else Index.open(path)


def _ready(is_wanted: Callable[[Manifest], bool]) -> Iterator[Path]:
    """Yield the folders of complete default indexes whose manifest `is_wanted` accepts, newest first."""
    found: list[tuple[float, Path]] = []
    for path in cache_folder().glob("*/manifest.json"):
        try:
            manifest = read_manifest(path.parent)
        except IndexFault:
            continue  # the index is damaged, or of another version
        is_complete = manifest.state == "complete" and all(_exists(path.parent, entry) for entry in manifest.files)
        if is_complete and is_wanted(manifest):
            found.append((path.stat().st_mtime, path.parent))
    return (folder for _, folder in sorted(found, reverse=True))


def _exists(folder: Path, entry: FileEntry) -> bool:
    try:
        return (folder / entry.path).stat().st_size == entry.size
    except OSError:
        return False

"""Look up the fingerprint of a model's weights without opening the model, if its files have not changed.

When a model is opened with its default dtype, a record of the fingerprint is written to the cache folder, with the size
and modification time of each file. With this record, a question that an index can answer needs neither torch nor the
weights.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unembed.errors import UnembedError
from unembed.models.shipped_models import SHIPPED, shipped_folder
from unembed.results import write_whole
from unembed.results.cache import cache_folder

if TYPE_CHECKING:
    from unembed.models.decoder import Decoder

_RECORD = "weights.json"
_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".json", ".txt", ".model"})
"""File name endings of weights, configuration and tokenizer."""


@dataclass(frozen=True)
class KnownWeights:
    """The fingerprints of a model's weights, in the dtype in which they are saved."""

    weights: str
    sampled: str


def known_weights(model: str, revision: str | None = None) -> KnownWeights | None:
    """Return the fingerprints of the weights; None if they were not recorded, or the files have changed since.

    Args:
        model: the name of a shipped model, a folder, or the id of a hub model in the local cache.
        revision: the revision of a hub model.
    """
    folder = _folder(model, revision)
    stored = None if folder is None else _records().get(str(folder))
    if folder is None or stored is None or stored["files"] != _files(folder):
        return None
    return KnownWeights(stored["weights"], stored["sampled"])


def record_weights(model: str, revision: str | None, lm: Decoder, weights: str) -> None:
    """Record the fingerprints of a model's weights in the cache; do nothing if its files or the cache are not there.

    Args:
        model: the name of a shipped model, a folder, or the id of a hub model.
        revision: the revision of a hub model.
        lm: the opened model, in the dtype in which it is saved.
        weights: the model's `weights_fingerprint`.
    """
    from unembed.models.fingerprint import sampled_fingerprint

    folder = _folder(model, revision)
    if folder is None:
        return
    known = KnownWeights(weights, sampled_fingerprint(lm))
    records = _records() | {str(folder): {"files": _files(folder), **asdict(known)}}
    with suppress(UnembedError, OSError):
        cache_folder().mkdir(parents=True, exist_ok=True)
        write_whole(cache_folder() / _RECORD, json.dumps(records, indent=1) + "\n")


def _records() -> dict[str, Any]:
    """Return all records; empty if the file is missing or damaged."""
    try:
        stored = json.loads((cache_folder() / _RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    complete = {"files", "weights", "sampled"}
    if not isinstance(stored, dict):
        return {}
    return {folder: one for folder, one in stored.items() if isinstance(one, dict) and set(one) == complete}


def _folder(model: str, revision: str | None) -> Path | None:
    if model in SHIPPED:
        return shipped_folder(model)
    with suppress(OSError, ValueError):
        if (folder := Path(model).expanduser()).is_dir():
            return folder.resolve()
    from huggingface_hub import try_to_load_from_cache

    with suppress(ValueError):  # the name cannot be a hub id
        if isinstance(path := try_to_load_from_cache(model, "config.json", revision=revision), str):
            return Path(path).parent
    return None


def _files(folder: Path) -> list[list[str | int]]:
    """Return name, size and modification time of each file that the model is read from."""
    paths = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file())
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in paths]

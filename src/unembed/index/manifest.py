"""The manifest of an index: its model, corpus and settings, and the size and checksum of every file.

A file has a temporary name until it is complete and on disk; only then is it added to the manifest. The manifest itself
is replaced by a rename. A file that the manifest does not list is not part of the index.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unembed.errors import IndexFault, InvalidInput, UnembedError, reading_fault
from unembed.results import Provenance, whole_file

SCHEMA = 2
"""Version of the file layout; it is increased when code for the old layout would misread files in the new one."""
NAME = "manifest.json"
_FORMAT = "unembed.index"
_CHUNK = 1 << 20
_CHECKED = 1 << 28
"""Size in bytes of the largest file whose checksum is verified when it is first read; this takes at most 0.2 s."""


@dataclass(frozen=True)
class FileEntry:
    """One file: path inside the index, size in bytes, SHA-256, and the part that it belongs to."""

    path: str
    size: int
    sha256: str
    part: str


@dataclass(frozen=True)
class Manifest:
    """The contents of `manifest.json`.

    Attributes:
        provenance: model, revision, dtype, corpus, version; its notes describe the sweep.
        weights: SHA-256 of the model's weights.
        layers: number of memories (FFN neurons) of each layer; memory (layer, index) is row `sum(layers[:layer]) +
            index` of every array.
        settings: the settings of the build; the index cannot be continued with other settings.
        state: "building" or "complete".
        facts: counts for display (tokens, segments, documents).
    """

    provenance: Provenance
    weights: str
    layers: tuple[int, ...]
    settings: Mapping[str, Any]
    state: str = "building"
    files: tuple[FileEntry, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def has(self, part: str) -> bool:
        """Return whether a part of the index is built."""
        return any(entry.part == part for entry in self.files)

    def to_json(self) -> str:
        """Return the text of `manifest.json`; its first lines identify the folder as an index."""
        body = {"format": _FORMAT, "schema": SCHEMA, "state": self.state, "provenance": self.provenance.to_dict()}
        body |= {"weights": self.weights, "layers": list(self.layers), "settings": dict(self.settings)}
        body |= {"facts": dict(self.facts), "files": [asdict(entry) for entry in self.files]}
        return _text_of(body | {"checksum": _checksum_of(body)}) + "\n"


def _text_of(body: Mapping[str, Any]) -> str:
    return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False)


def _checksum_of(body: Mapping[str, Any]) -> str:
    """Return the SHA-256 hash of the manifest's text, to detect a manifest that was edited."""
    return hashlib.sha256(_text_of(body).encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of an index.

    Raises:
        IndexFault: there is no index, or its manifest is damaged or has another schema.
    """
    path = folder / NAME
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        why = "there is no such folder" if not folder.is_dir() else f"the folder contains no {NAME}"
        raise IndexFault(f"no index at {folder}", why=why, instead="Build one with unembed index build") from None
    except NotADirectoryError:
        raise IndexFault(
            f"no index at {folder}", why="it is not a folder", instead="Build one with unembed index build"
        ) from None
    except (OSError, ValueError) as error:
        raise IndexFault(
            f"cannot read {path}", why=reading_fault(error), instead="Build the index again elsewhere"
        ) from error
    if not isinstance(stored, dict) or stored.get("format") != _FORMAT:
        raise IndexFault(
            f"{path} is not the manifest of an index",
            why="unembed did not write it",
            instead="Give the folder of an index",
        )
    if stored.get("schema") != SCHEMA:
        raise IndexFault(
            f"index {folder} has schema {stored.get('schema')}",
            why=f"this version of unembed reads schema {SCHEMA}",
            instead="Build it again, or use the version of unembed that made it",
        )
    if (written := stored.pop("checksum", None)) is not None and written != _checksum_of(stored):
        raise IndexFault(
            f"{path} is damaged", why="its checksum is wrong", instead="Build the index again in another folder"
        )
    try:
        return Manifest(
            provenance=Provenance.from_dict(stored["provenance"]),
            weights=str(stored["weights"]),
            layers=tuple(int(n) for n in stored["layers"]),
            settings=stored["settings"],
            state=str(stored["state"]),
            files=tuple(FileEntry(**entry) for entry in stored["files"]),
            facts=stored["facts"],
        )
    except (KeyError, TypeError, ValueError, InvalidInput) as error:
        raise IndexFault(f"{path} is damaged", why=str(error), instead="Build the index again elsewhere") from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest under a temporary name and rename it; when this returns, both are on disk."""
    write_file(folder, NAME, "", lambda path: path.write_text(manifest.to_json(), encoding="utf-8"))


def checksum(path: Path) -> str:
    """Return the SHA-256 hash of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()


def fault(folder: Path, entry: FileEntry) -> str | None:
    """Describe the fault of a file in a few words; None if it is intact."""
    path = folder / entry.path
    try:
        size = path.stat().st_size
        if size != entry.size:
            return f"{size:,} bytes instead of {entry.size:,}"
        return None if checksum(path) == entry.sha256 else "its content is not what was written"
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return error.strerror or str(error)


def check(folder: Path, entry: FileEntry) -> None:
    """Raise an error if a file is damaged; for files of more than 256 MiB, only the size is compared.

    Raises:
        IndexFault: the file is missing, has another size or other contents.
    """
    path = folder / entry.path
    if entry.size > _CHECKED and path.is_file() and path.stat().st_size == entry.size:
        return  # too large to compute its checksum here; `verify` does
    if why := fault(folder, entry):
        raise IndexFault(f"{path} is damaged", why=why, instead="Run the same build again: it repairs the index")


def write_file(folder: Path, name: str, part: str, write: Callable[[Path], object]) -> FileEntry:
    """Write a file, flush it to disk, and return its entry for the manifest.

    Raises:
        UnembedError: the disk is full or the folder cannot be written to; no half-written file is left.
    """
    target = folder / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target, durable=True) as temporary:
            write(temporary)
            return FileEntry(name, temporary.stat().st_size, checksum(temporary), part)
    except OSError as error:
        raise UnembedError(
            f"cannot write {target}",
            why=error.strerror or str(error),
            instead="Make room and run the same build again: it resumes where it stopped",
        ) from error

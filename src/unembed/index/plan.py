"""Check whether an index can be built in a folder: it may be new or empty, or contain a build of the same index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unembed.errors import IndexFault, InvalidInput, Unsupported
from unembed.index.arrays import SUPPRESSED
from unembed.index.lock import NAME as LOCK_NAME
from unembed.index.manifest import NAME as MANIFEST_NAME
from unembed.index.manifest import Manifest, fault, read_manifest, write_manifest
from unembed.index.settings import IndexSettings

if TYPE_CHECKING:  # so that a folder can be checked before torch is imported
    from unembed.corpus import Corpus
    from unembed.models.decoder import Decoder


def planned(lm: Decoder, corpus: Corpus, settings: IndexSettings) -> Manifest:
    """Return the manifest of a new index, before anything is built.

    Raises:
        Unsupported: the model has no memories.
        InvalidInput: a setting has an invalid value.
    """
    from unembed.jacobian import basis_or_default, lens_identity
    from unembed.models.fingerprint import weights_fingerprint

    if not lm.memory_layers:
        lm.feed_forward(0)
        raise Unsupported(f"an index of {lm.name}", why="it has no memories (FFN neurons)")
    provenance = lm.provenance(
        corpus=corpus.fingerprint,
        basis=basis_or_default(lm, None, "raw"),
        notes={"corpus_name": corpus.name, "segmentation": corpus.segmentation},
    )
    chosen = {lm.layer(n) for n in settings.layers} if settings.layers is not None else set(lm.memory_layers)
    if lacking := sorted(chosen - set(lm.memory_layers)):
        lm.feed_forward(lacking[0])  # raises the error that says why there are no memories
    layers = tuple(lm.n_memories_of(n) if n in chosen else 0 for n in range(lm.n_layers))
    experts = [lm.experts_of(n) for n in range(lm.n_layers)]
    known: dict[str, Any] = {"experts": [e and list(e) for e in experts]} if any(experts) else {}
    read = {"lens": lens} if (lens := lens_identity(lm)) is not None else {}
    settled = settings_of(settings) | {"cut": corpus_cut(corpus)} | known | read
    return Manifest(provenance, weights_fingerprint(lm), layers, settled)


def settings_of(settings: IndexSettings) -> dict[str, Any]:
    """Return the settings as a dict for the manifest; `layers` is left out if None, as in older indexes."""
    plain = asdict(settings)
    layers = plain.pop("layers")
    return plain if layers is None else plain | {"layers": list(layers)}


def corpus_cut(corpus: Corpus) -> dict[str, Any]:
    """Return how the corpus is segmented, as a dict without its name and files.

    A build can be resumed only with the same segmentation.
    """
    return {name: value for name, value in corpus.describe().items() if name not in ("name", "files", "fingerprint")}


def check_folder(folder: Path, corpus: Corpus, settings: IndexSettings) -> None:
    """Check that an index of this corpus may be built in a folder, before a model is loaded.

    Raises:
        IndexFault: the folder has an index of another corpus, or with other settings.
        InvalidInput: the folder has other files, or is a file.
    """
    check_place(folder)
    if (folder / MANIFEST_NAME).exists():
        stored = read_manifest(folder)
        _compare(
            folder, ("corpus", stored.provenance.corpus, corpus.fingerprint), *_settings_of(stored, corpus, settings)
        )


def _settings_of(stored: Manifest, corpus: Corpus, settings: IndexSettings) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, stored value and new value of every setting."""
    new = {"layers": None} | settings_of(settings) | {"cut": corpus_cut(corpus)}
    return ((name, stored.settings.get(name), value) for name, value in new.items())


def _compare(folder: Path, *facts: tuple[str, Any, Any]) -> None:
    for name, stored, new in facts:
        if stored != new:
            raise IndexFault(
                f"{folder} contains an index with another {name}",
                why=f"it has {_short(stored)}, and this build has {_short(new)}",
                instead="Give another folder, or remove this one",
            )


def check_place(folder: Path) -> None:
    """Check that an index may be built in a folder.

    Raises:
        InvalidInput: it contains other files, or is a file.
    """
    try:
        is_file = folder.exists() and not folder.is_dir()
        if b"\0" in os.fsencode(folder):
            raise ValueError("the path contains a NUL character")
    except (OSError, ValueError) as error:  # ValueError: the path has a NUL or half a surrogate pair
        why = getattr(error, "strerror", None) or "no folder can have this name"
        raise InvalidInput(f"cannot build in {str(folder)[:60]!r}", why=why, instead="Give another name") from error
    if is_file:
        raise InvalidInput(f"cannot build in {folder}", why="it is a file", instead="Give the name of a folder")
    if not folder.is_dir() or (folder / MANIFEST_NAME).exists():
        return
    if others := sorted(p.name for p in folder.iterdir() if not p.name.startswith((LOCK_NAME, f".{MANIFEST_NAME}"))):
        raise InvalidInput(
            f"cannot build in {folder}",
            why=f"it contains other files ({others[0]}) and no index",
            instead="Give a new or empty folder",
        )


def resumable(folder: Path, wanted: Manifest, resume: bool) -> Manifest:
    """Return the manifest of the folder's index with only its intact parts listed, so that the others are built again.

    Raises:
        IndexFault: the folder has another index, or `resume` is False.
    """
    there = read_manifest(folder)
    if not resume:
        raise IndexFault(
            f"{folder} already contains an index ({there.state})",
            why="resume=False, so it is neither continued nor overwritten",
            instead="Give another folder, or remove this one",
        )
    if there.weights != wanted.weights:
        _compare(folder, ("model", there.provenance.model, wanted.provenance.model))
        _compare(folder, ("model", f"weights {there.weights[:12]}", f"weights {wanted.weights[:12]}"))
    _compare(
        folder,
        ("dtype", there.provenance.dtype, wanted.provenance.dtype),
        ("corpus", there.provenance.corpus, wanted.provenance.corpus),
        *((name, there.settings.get(name), value) for name, value in wanted.settings.items() if name != "lens"),
    )
    sound = tuple(entry for entry in there.files if fault(folder, entry) is None)
    damaged = {entry.part for entry in there.files if entry not in sound}
    if not any(entry.path.startswith(SUPPRESSED) for entry in there.files):
        damaged.add("values")  # an earlier version built it, without suppressed tokens
    if there.settings.get("lens") != wanted.settings.get("lens"):
        damaged |= {"values", "tables"}  # these parts depend on the lens, so they are built again
        settings = {name: value for name, value in there.settings.items() if name != "lens"}
        read = {name: wanted.settings[name] for name in ("lens",) if name in wanted.settings}
        basis = wanted.provenance.basis
        there = replace(there, settings=settings | read, provenance=replace(there.provenance, basis=basis))
    if not any(entry.part in damaged for entry in there.files):
        return there
    # A part with a damaged file is built again as a whole. Parts that were computed from it stay, because building them
    # again would give the same files.
    repaired = replace(there, state="building", files=tuple(e for e in sound if e.part not in damaged))
    write_manifest(folder, repaired)
    return repaired


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."

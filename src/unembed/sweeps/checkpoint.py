"""A sweep saved to one file, written whole or not at all, and taken up again only by the same sweep."""

from __future__ import annotations

import glob
import os
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unembed.corpus.corpus import Corpus
from unembed.errors import CheckpointFault
from unembed.models.decoder import Decoder
from unembed.models.fingerprint import sampled_fingerprint
from unembed.sweeps.reducers.reducer import Reducer
from unembed.version import __version__

SCHEMA = 1


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds: how many batches were fed, and every reducer's state after them."""

    batches: int
    tokens: int
    finished: bool
    states: tuple[Mapping[str, Any], ...]


def identity(lm: Decoder, corpus: Corpus, reducers: Sequence[Reducer], tokens_per_batch: int) -> dict[str, str]:
    """What must be equal for a sweep to go on from a checkpoint."""
    return {
        "model": lm.name,
        "weights": sampled_fingerprint(lm),
        "corpus": f"{corpus.name} ({corpus.fingerprint})",
        "reducers": "; ".join(reducer.settings() for reducer in reducers),
        "batch size": str(tokens_per_batch),
        "version": __version__,
    }


def save(path: Path, saved: Saved, who: Mapping[str, str]) -> None:
    """Write the checkpoint under another name, bring it to the disk, then rename it.

    Raises:
        CheckpointFault: the disk is full or the folder cannot be written; what was there before is untouched.
    """
    held = {
        "schema": SCHEMA,
        "identity": dict(who),
        "batches": saved.batches,
        "tokens": saved.tokens,
        "finished": saved.finished,
        "states": [dict(state) for state in saved.states],
    }
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            torch.save(held, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            beside.unlink()
        raise _unwritable(path, error) from error


def prepare(path: Path) -> None:
    """See that the folder can be written, before hours are spent; remove what a killed sweep left half-written.

    Raises:
        CheckpointFault: it cannot.
    """
    try:
        if b"\0" in os.fsencode(path):
            raise ValueError("a NUL")
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
            left.unlink(missing_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        beside.touch()
        beside.unlink()
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: Exception) -> CheckpointFault:
    # On a full disk torch reports where its archive broke off; the system's own words are in the error before.
    before = error if isinstance(error, OSError) else error.__context__
    unnamed = "no file can have this name" if isinstance(error, ValueError) else "the disk may be full"
    why = getattr(before, "strerror", None) or unnamed
    return CheckpointFault(
        f"checkpoint {path}", why=f"it cannot be written: {why}", instead="Make room, or name another file"
    )


def load(path: Path, who: Mapping[str, str]) -> Saved | None:
    """The checkpoint of this very sweep, or None where there is none.

    Raises:
        CheckpointFault: it is damaged, or of another sweep; the message says what differs.
    """
    if not path.exists():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                raise zipfile.BadZipFile
        held = torch.load(path, map_location="cpu", weights_only=True)
        saved = Saved(held["batches"], held["tokens"], held["finished"], tuple(held["states"]))
        schema, found = held["schema"], held["identity"]
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise CheckpointFault(
            f"checkpoint {path}", why="it is damaged or no checkpoint", instead="Delete it to begin again"
        ) from error
    if schema != SCHEMA:
        raise CheckpointFault(f"checkpoint {path}", why=f"its schema is {schema}, this version writes {SCHEMA}")
    for name, value in who.items():
        if found.get(name) != value:
            raise CheckpointFault(
                f"checkpoint {path}",
                why=f"it belongs to another sweep: its {name} is {found.get(name)}, not {value}",
                instead="Give the same settings, or another file",
            )
    return saved

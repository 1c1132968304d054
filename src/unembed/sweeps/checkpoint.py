"""Save the state of a sweep to one file, either completely or not at all; only the same sweep can resume from it."""

from __future__ import annotations

import os
import pickle
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unembed.corpus.corpus import Corpus
from unembed.corpus.token_stream import TokenizedCorpus
from unembed.corpus.whole_windows import WholeWindows
from unembed.errors import CheckpointFault
from unembed.models.decoder import Decoder
from unembed.models.fingerprint import sampled_fingerprint
from unembed.results.files import UNFINISHED, whole_file
from unembed.sweeps.reducers.reducer import Reducer
from unembed.version import __version__

SCHEMA = 1


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint: the number of batches done, and the state of every reducer after them."""

    batches: int
    tokens: int
    finished: bool
    states: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class CheckpointInterval:
    """How often a sweep is saved: after a number of batches or minutes, whichever comes first."""

    batches: int | None = None
    minutes: float | None = 5.0

    def is_due(self, batches: int, seconds: float) -> bool:
        """Tell whether a sweep must be saved, given the batches and seconds since the last save."""
        if self.batches is not None and batches >= self.batches:
            return True
        return self.minutes is not None and seconds >= 60 * self.minutes


def identity_of(
    lm: Decoder, corpus: Corpus | TokenizedCorpus | WholeWindows, reducers: Sequence[Reducer], tokens_per_batch: int
) -> dict[str, str]:
    """Return everything that must be equal for a sweep to resume from a checkpoint, by name."""
    return {
        "model": lm.name,
        "weights": sampled_fingerprint(lm),
        "corpus": f"{corpus.name} ({corpus.fingerprint})",
        "reducers": "; ".join(reducer.settings() for reducer in reducers),
        "batch size": str(tokens_per_batch),
        "version": __version__,
    }


def save(path: Path, checkpoint: Checkpoint, identity: Mapping[str, str]) -> None:
    """Write a checkpoint; when this returns, it is on the disk completely.

    Raises:
        CheckpointFault: the disk is full or the folder cannot be written; an earlier checkpoint is not changed.
    """
    content = {
        "schema": SCHEMA,
        "identity": dict(identity),
        "batches": checkpoint.batches,
        "tokens": checkpoint.tokens,
        "finished": checkpoint.finished,
        "states": [dict(state) for state in checkpoint.states],
    }
    try:
        with whole_file(path, durable=True) as temporary, temporary.open("wb") as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:
        raise _unwritable(path, error) from error


def prepare(path: Path) -> None:
    """Check that the folder can be written to, before hours are spent on the sweep.

    Raises:
        CheckpointFault: the folder cannot be written to.
    """
    try:
        if b"\0" in os.fsencode(path):
            raise ValueError("the path contains a NUL character")
        path.parent.mkdir(parents=True, exist_ok=True)
        # The test file has the name of an unfinished checkpoint. If the process is killed before the test file is
        # deleted, the next save deletes it, as it does unfinished checkpoints.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED):
            pass
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: Exception) -> CheckpointFault:
    # If the disk is full, torch's error says only at which byte writing stopped. The operating system's message is in
    # the exception that was being handled when torch raised its own.
    before = error if isinstance(error, OSError) else error.__context__
    default = "no file can have this name" if isinstance(error, ValueError) else "the disk may be full"
    why = getattr(before, "strerror", None) or default
    return CheckpointFault(
        f"checkpoint {path}", why=f"it cannot be written: {why}", instead="Make room, or choose another file"
    )


def load(path: Path, identity: Mapping[str, str]) -> Checkpoint | None:
    """Read the checkpoint of this sweep; return None if the file does not exist.

    Raises:
        CheckpointFault: the file is damaged, or is from another sweep; the message names the difference.
    """
    if not path.exists():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                raise zipfile.BadZipFile
        content = torch.load(path, map_location="cpu", weights_only=True)
        saved = Checkpoint(content["batches"], content["tokens"], content["finished"], tuple(content["states"]))
        schema, stored = content["schema"], content["identity"]
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise CheckpointFault(
            f"checkpoint {path}", why="it is damaged, or not a checkpoint", instead="Delete it to start again"
        ) from error
    if schema != SCHEMA:
        raise CheckpointFault(f"checkpoint {path}", why=f"its schema is {schema}, this version writes {SCHEMA}")
    for name, value in identity.items():
        if stored.get(name) != value:
            raise CheckpointFault(
                f"checkpoint {path}",
                why=f"it belongs to another sweep: its {name} is {stored.get(name)}, not {value}",
                instead="Use the same settings, or another file",
            )
    return saved

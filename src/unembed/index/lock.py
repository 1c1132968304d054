"""Allow one build at a time in a folder; readers need no lock."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unembed.errors import IndexFault
from unembed.results import writing

NAME = ".lock"


@contextmanager
def build_lock(folder: Path) -> Iterator[None]:
    """Lock the folder for a build. The system releases the lock when the process ends, even if it is killed.

    Raises:
        IndexFault: another process has locked the folder.
        UnembedError: the folder cannot be written to.
    """
    import fcntl

    with writing(folder, instead="Choose another place"):
        handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
            raise IndexFault(
                f"index {folder} is being built",
                why=f"process {holder} holds its lock" if holder else "another process holds its lock",
                instead="Wait for that build, or build into another folder",
            ) from error
        with writing(folder, instead="Make room, or choose another place"):
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)

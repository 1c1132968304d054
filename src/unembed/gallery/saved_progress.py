"""Save what a ranking has found, so that an interrupted ranking continues where it stopped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from unembed.errors import UnembedError
from unembed.gallery.candidates import Candidate
from unembed.results import write_whole


class SavedProgress:
    """A folder with a file for each finished step; without a folder, nothing is saved."""

    def __init__(self, folder: Path | None = None, key: str = "") -> None:
        """Continue with what is in the folder.

        Args:
            folder: where the files are; made when the first step is finished.
            key: what the steps depend on: files of another key are not read.
        """
        self._folder, self._key = folder, key

    def step(self, name: str, find: Callable[[], Sequence[Candidate]]) -> list[Candidate]:
        """Return the candidates of a step, read from its file if it was finished before, else found now."""
        path = None if self._folder is None else self._folder / f"{name}.json"
        if path is not None and path.exists():
            with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged file: the step is done again
                stored = json.loads(path.read_text(encoding="utf-8"))
                if stored["key"] == self._key:
                    return [Candidate.from_dict(row) for row in stored["candidates"]]
        found = list(find())
        if path is not None:
            with suppress(OSError, UnembedError):  # an index may be read-only
                path.parent.mkdir(exist_ok=True)
                write_whole(path, json.dumps({"key": self._key, "candidates": [one.to_dict() for one in found]}))
        return found

    def remove(self) -> None:
        """Remove the files, because the ranking is finished."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

"""Save the finished steps of a ranking, so that an interrupted ranking can continue."""

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
        """Use the files in a folder.

        Args:
            folder: the folder of the files; it is created when the first step is finished.
            key: identifies model, corpus and settings; files that were saved with another key are ignored.
        """
        self._folder, self._key = folder, key

    def step(self, name: str, find: Callable[[], Sequence[Candidate]]) -> list[Candidate]:
        """Return the candidates of a step: from its file if there is one, else from `find`, whose result is saved."""
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

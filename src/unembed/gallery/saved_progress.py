"""Save the finished steps of a ranking, so that an interrupted ranking can continue."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from unembed.errors import UnembedError
from unembed.gallery.candidates import Candidate
from unembed.results.result_files import open_result, save_result


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
        path = None if self._folder is None else self._folder / f"{name}.safetensors"
        if path is not None and path.exists():
            with suppress(UnembedError, ValueError):  # a damaged file: the step is done again
                key, stored = open_result(path)
                if key == self._key:
                    return stored
        found = list(find())
        if path is not None:
            with suppress(OSError, UnembedError):  # an index may be read-only
                path.parent.mkdir(exist_ok=True)
                save_result((self._key, found), path)
        return found

    def remove(self) -> None:
        """Remove the files, because the ranking is finished."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

"""The state of the work on a report: its folder, its seed, and stages that a killed run does not repeat."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unembed.results import write_whole

if TYPE_CHECKING:
    from unembed.jacobian import JacobianLens

STAGES = ".stages"
FINISHED = ".finished.json"
"""The settings of the finished report in a folder."""
_KEY = "key.json"

Arrays = Mapping[str, np.ndarray]
Progress = Callable[[str, int, int], None]
"""Called with the name of a step, the amount done, and the total."""


@cache
def code_digest() -> str:
    """Return a digest of the package's source, because other code may store other arrays in a stage."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _silent(what: str, done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class Work:
    """Where a study stores the stages that it has completed.

    Attributes:
        out: folder of the report.
        key: everything the numbers depend on (model, corpus, seed, options); stages of another key are not used.
        progress: called as the work progresses.
        lens: the model's fitted lens, which the paper's readings leave aside; None where there is none.
    """

    out: Path
    key: Mapping[str, Any]
    seed: int = 0
    progress: Progress = field(default=_silent)
    lens: JacobianLens | None = None

    def begin(self) -> None:
        """Delete the stages that a run with other settings or code left in the folder, and report what differs."""
        folder, key = self.out / STAGES, json.loads(_text_of(self.key))
        (self.out / FINISHED).unlink(missing_ok=True)
        if folder.exists():
            try:
                stored = json.loads((folder / _KEY).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                stored = {}
            differing = [name for name in key if stored.get(name) != key[name]] if stored else ["version"]
            if not differing:
                return
            shutil.rmtree(folder)
            self.progress(f"starting over: the saved stages have another {' and another '.join(differing)}", 0, 1)
        folder.mkdir()
        write_whole(folder / _KEY, _text_of(self.key).encode())

    def stage(self, name: str, compute: Callable[[], Arrays]) -> dict[str, np.ndarray]:
        """Return named arrays: computed once, and read from the folder in a later run.

        Args:
            name: the name of the stage, unique in the study.
            compute: gives the arrays; numbers, booleans or fixed-width text, no objects.
        """
        import io

        path = self.path(name, "npz")
        if path.exists():
            try:
                with np.load(path, allow_pickle=False) as stored:
                    return {k: stored[k] for k in stored.files}
            except (OSError, ValueError, zipfile.BadZipFile):
                path.unlink()
        found = {k: np.asarray(v) for k, v in compute().items()}
        path.parent.mkdir(exist_ok=True)
        sink = io.BytesIO()
        np.savez(sink, allow_pickle=False, **found)
        write_whole(path, sink.getvalue())
        return found

    def path(self, name: str, ending: str) -> Path:
        """Return where a stage stores something, under a name that no run with other settings uses."""
        text = f"{name} {_text_of(self.key)}"
        return self.out / STAGES / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.{ending}"

    def finished(self) -> None:
        """Delete the stages, because the report is complete and its tables contain their results; the key stays."""
        shutil.rmtree(self.out / STAGES, ignore_errors=True)
        write_whole(self.out / FINISHED, _text_of(self.key).encode())


def is_finished(folder: Path, key: Mapping[str, Any]) -> bool:
    """Tell whether a folder has a finished report of these settings."""
    try:
        return (folder / FINISHED).read_text(encoding="utf-8") == _text_of(key)
    except OSError:
        return False


def _text_of(key: Mapping[str, Any]) -> str:
    return json.dumps(dict(key), sort_keys=True, default=str)

"""The state of the work on a report: its folder, its seed, and stages that a killed run does not repeat."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unembed.results import write_whole

if TYPE_CHECKING:
    from unembed.jacobian import JacobianLens

STAGES = ".stages"

Arrays = Mapping[str, np.ndarray]
Progress = Callable[[str, int, int], None]
"""Called with the name of a step, the amount done, and the total."""


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
        text = json.dumps([name, dict(self.key)], sort_keys=True, default=str)
        return self.out / STAGES / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.{ending}"

    def finished(self) -> None:
        """Delete the stages, because the report is complete and its tables contain their results."""
        shutil.rmtree(self.out / STAGES, ignore_errors=True)

"""Store the results of a report's finished steps (its stages), so that a run after an interruption can use them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from unembed.errors import InvalidInput
from unembed.results import write_whole
from unembed.results.result_files import open_result, save_result

if TYPE_CHECKING:
    from unembed.jacobian import JacobianLens

STAGES = ".stages"
FINISHED = ".finished.json"
"""Name of the file, in a report's folder, with the settings with which the finished report was made."""
_KEY = "key.json"

T = TypeVar("T")
Progress = Callable[[str, int, int], None]
"""A function that reports progress; it is called with the name of a step, the amount done, and the total."""


@cache
def code_digest() -> str:
    """Return a hash of the package's source code, so that results stored by another version of it are not used."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def silent(what: str, done: int, total: int) -> None:
    """Do nothing: the progress function of a study that shows none."""


@dataclass(frozen=True)
class Work:
    """The folder in which a study stores its finished steps, called stages, with its seed and progress function.

    Attributes:
        out: folder of the report.
        key: everything the numbers depend on (model, corpus, seed, options); stages with another key are not used.
        seed: the random seed of the study.
        progress: called with the name of a step, the amount done, and the total.
        lens: the model's fitted lens, used only for the section on verdicts that it changes; None if none is fitted.
        of_text: results that depend on the text but not on the weights; see `once_for_text`. Copies that
            `dataclasses.replace` makes, such as the control's, share this dict.
    """

    out: Path
    key: Mapping[str, Any]
    seed: int = 0
    progress: Progress = field(default=silent)
    lens: JacobianLens | None = None
    of_text: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def begin(self) -> None:
        """Delete stages in the folder that come from other settings or code, and call `progress` with what differs."""
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
            self.progress(f"starting over: the saved stages differ in {' and '.join(differing)}", 0, 1)
        folder.mkdir()
        write_whole(folder / _KEY, _text_of(self.key).encode())

    def stage(self, name: str, compute: Callable[[], T]) -> T:
        """Return what `compute` returns, from the folder if an earlier run stored it there.

        Args:
            name: the name of the stage, unique in the study.
            compute: computes plain values, arrays, tables, or dataclasses of these, which `save_result` can store.
        """
        path = self.path(name, "safetensors")
        if path.exists():
            try:
                return open_result(path)
            except (InvalidInput, ValueError):  # a damaged file
                path.unlink()
        found = compute()
        path.parent.mkdir(exist_ok=True)
        save_result(found, path)
        return found

    def once_for_text(self, name: str, compute: Callable[[], T]) -> T:
        """Return what `compute` returns, computed once for the study and its control.

        Args:
            name: the name of the result, and of the text if a study has several.
            compute: computes what depends on text and tokenizer alone, not on the weights.
        """
        if name not in self.of_text:
            self.of_text[name] = compute()
        return cast(T, self.of_text[name])

    def path(self, name: str, ending: str) -> Path:
        """Return the path of a stage's file. Its name contains a hash of `key`, so other settings have other files."""
        text = f"{name} {_text_of(self.key)}"
        return self.out / STAGES / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.{ending}"

    def finished(self) -> None:
        """Delete the stages, because the report is complete, and write a file that marks the report as finished."""
        shutil.rmtree(self.out / STAGES, ignore_errors=True)
        write_whole(self.out / FINISHED, _text_of(self.key).encode())


def is_finished(folder: Path, key: Mapping[str, Any]) -> bool:
    """Return whether a folder has a finished report with these settings."""
    try:
        return (folder / FINISHED).read_text(encoding="utf-8") == _text_of(key)
    except OSError:
        return False


def _text_of(key: Mapping[str, Any]) -> str:
    return json.dumps(dict(key), sort_keys=True, default=str)

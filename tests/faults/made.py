"""What every fault is tried on: a tiny model, a few sentences and an index of them, on disk; and forks, which are warm.

A fork of a process that has everything imported and open begins its work at once, so that a signal at a random moment
meets the work and not the imports. It must be forked before this process has threads of its own.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.cli.conftest import save_model
from tests.index.conftest import TEXTS
from unembed.corpus import open_corpus
from unembed.index import Index, IndexSettings
from unembed.index import build as building
from unembed.language_model import LanguageModel, load
from unembed.sweeps import CheckpointInterval, sweep

SETTINGS: dict[str, Any] = {"top": 5, "settings": IndexSettings(top_tokens=6), "tokens_per_batch": 24}


@dataclass(frozen=True)
class World:
    """A folder with `model/`, `corpus.txt` and a complete `index/`; the model opened, and the bytes of the index."""

    folder: Path
    lm: LanguageModel
    built: dict[str, bytes]

    @property
    def index(self) -> Path:
        """The complete index, which nobody changes."""
        return self.folder / "index"

    @property
    def corpus(self) -> Path:
        """The text, a document a line."""
        return self.folder / "corpus.txt"

    def build(self, folder: Path) -> Index:
        """Build, go on or repair; the sweep saves itself after every batch, so that kills meet its checkpoints too."""
        with mock.patch.object(building, "sweep", partial(sweep, every=CheckpointInterval(batches=1))):
            return Index.build(self.lm, open_corpus(self.corpus), folder, **SETTINGS)


def make(folder: Path) -> World:
    """The world, made anew."""
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder / "model")
    (folder / "corpus.txt").write_text("\n\n".join(TEXTS * 2), encoding="utf-8")
    world = World(folder, load(folder / "model"), {})
    world.build(world.index)
    return World(folder, world.lm, contents(world.index))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the lock, by its path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@dataclass
class Ended:
    """How a fork ended: its exit code (negative: by that signal), and what it wrote."""

    code: int
    stdout: str
    stderr: str


def forked(work: Callable[[], Any], meanwhile: Callable[[BaseProcess], None] = lambda process: None) -> Ended:
    """Run `work` in a fork of this process, and `meanwhile` here, given the process; then wait for it."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")

        def inside() -> None:
            for path, number in ((out, 1), (err, 2)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  (pytest holds its own)
            sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            gc.callbacks.clear()  # hypothesis has one: Python that runs in the midst of C, where a Ctrl-C is swallowed
            # After a fork torch makes its threads anew, and fails where two threads ask at once: here one asks first.
            torch.set_num_threads(torch.get_num_threads())
            try:
                work()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()

        process = multiprocessing.get_context("fork").Process(target=inside)
        gc.freeze()  # in the fork, a collection would copy all that is here, and swallow a Ctrl-C that meets it
        process.start()
        gc.unfreeze()
        meanwhile(process)
        process.join()
        assert process.exitcode is not None
        read = [p.read_text(encoding="utf-8", errors="replace") if p.exists() else "" for p in (out, err)]
    return Ended(process.exitcode, *read)

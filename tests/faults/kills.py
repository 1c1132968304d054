"""Builds killed (kill -9) at random moments, or stopped by a full disk: the next build ends with the same bytes."""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

from tests.faults.made import Ended, World, contents, forked
from unembed.errors import UnembedError
from unembed.index import Index, stream_files
from unembed.index import build as building
from unembed.index.manifest import FileEntry, write_file


@dataclass(frozen=True)
class Round:
    """One build: how often it was stopped, what was done at each stop, and what came out in the end.

    Attributes:
        stops: kills, or full disks, that met a build under way.
        parts: how many parts were finished at each stop.
        sound: every file that the manifest named at each stop was whole.
        differing: files that in the end are not those of a build never disturbed, byte for byte; normally none.
    """

    stops: int
    parts: tuple[int, ...]
    sound: bool
    differing: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether nothing was damaged, lost or left behind."""
        return self.sound and not self.differing


def killed(world: World, draw: random.Random, seconds: float) -> Round:
    """One to three builds of one index, each killed at a random moment of `seconds`, then one that ends."""

    def once(folder: Path) -> bool:
        def kill(process: BaseProcess) -> None:
            time.sleep(draw.uniform(0, seconds))
            process.kill()

        return forked(lambda: world.build(folder), kill).code == -signal.SIGKILL

    return _round(world, draw.randint(1, 3), once)


def disk_full(world: World, draw: random.Random) -> tuple[Round, list[Ended]]:
    """One to three builds for which, from a random file on, the disk has only a few bytes left, then one that ends."""
    ends: list[Ended] = []

    def once(folder: Path) -> bool:
        after, room = draw.randrange(draw.choice((5, 22))), draw.randrange(1500)
        ends.append(forked(lambda: short_of_room(world, folder, after, room)))
        return ends[-1].code != 0

    return _round(world, draw.randint(1, 3), once), ends


def short_of_room(world: World, folder: Path, after: int, room: int) -> None:
    """Build, and from the file of that number on let no file grow beyond `room` bytes."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write fails, with an error instead of a signal
    written = 0

    def counting(*given: Any) -> FileEntry:
        nonlocal written
        written += 1
        if written > after:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, unlimited[1]))
        return write_file(*given)

    try:
        with (
            mock.patch.object(building, "write_file", counting),
            mock.patch.object(stream_files, "write_file", counting),
        ):
            world.build(folder)
    except UnembedError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        print(f"unembed: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def _round(world: World, times: int, once: Callable[[Path], bool]) -> Round:
    folder = world.folder / "round"
    stops, parts, sound = 0, [], True
    for _ in range(times):
        if not once(folder):
            continue
        stops += 1
        if (folder / "manifest.json").exists():
            stored = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            parts.append(len({entry["part"] for entry in stored["files"]}))
            found = Index.open(folder, partial=True).verify().columns["fault"]
            sound = sound and all(fault is None for fault in found)
        else:
            parts.append(0)
    world.build(folder)
    built = contents(folder)
    differing = sorted(file for file in built | world.built if built.get(file) != world.built.get(file))
    shutil.rmtree(folder)
    return Round(stops, tuple(parts), sound, tuple(differing))

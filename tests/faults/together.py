"""Readers of one index while a builder makes it, damages it and repairs it: each answer is right, or one line."""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from tests.faults.damage import answers, harm
from tests.faults.made import World
from unembed import load

STARTED = 120.0  # seconds that readers have to import torch and open the model


def run(world: World, readers: int, repairs: int, seed: int, expected: dict[str, str]) -> Counter[str]:
    """How many answers were right, refused, or wrong: `readers` processes ask while the index is built and repaired."""
    folder, draw = world.folder / "shared", random.Random(seed)
    spawn: Any = multiprocessing.get_context("spawn")  # a fork would share threads of torch and pyarrow, half-dead
    ready, done = spawn.Barrier(readers + 1), spawn.Event()
    found = [world.folder / f"reader-{n}.json" for n in range(readers)]
    processes = [
        spawn.Process(target=_read, args=(world.folder, folder, expected, ready, done, path)) for path in found
    ]
    for process in processes:
        process.start()
    try:
        ready.wait(STARTED)
        world.build(folder)
        for _ in range(repairs):
            harm(folder / draw.choice([name for name in world.built if name != "manifest.json"]), "gone", draw)
            world.build(folder)
    finally:
        done.set()
        for process in processes:
            process.join()
        shutil.rmtree(folder, ignore_errors=True)
    assert [process.exitcode for process in processes] == [0] * readers
    total: Counter[str] = Counter()
    for path in found:
        total.update(json.loads(path.read_text(encoding="utf-8")))
    return total


def _read(place: Path, folder: Path, expected: dict[str, str], ready: Any, done: Any, out: Path) -> None:
    world, count = World(place, load(place / "model"), {}), Counter[str]()
    ready.wait(STARTED)
    while not done.is_set() or count["right"] < 10:  # once it is whole every answer is right
        for name, answer in answers(world, folder).items():
            if answer.startswith("refused: "):
                count["refused"] += 1
            elif answer == expected[name]:
                count["right"] += 1
            else:
                count[f"wrong: {name}: {answer[:200]}"] += 1
        if done.is_set() and not folder.is_dir():
            break
    out.write_text(json.dumps(count), encoding="utf-8")

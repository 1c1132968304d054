"""A branch of a training run whose learning rate falls to zero; the trunk can continue at its peak."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from unembed.errors import CheckpointFault
from unembed.training import checkpoint
from unembed.training.recipes import Recipe


def with_decay(recipe: Recipe, start: int, updates: int) -> Recipe:
    """A recipe up to update `start`, then `updates` more with a rate that falls to zero in a straight line."""
    phase = recipe.phase(start)
    before = [other for other in recipe.phases if other.until <= start]
    first = before[-1].until if before else 0
    begin, end = phase.lr
    now = begin + (end - begin) * (start - first) / (phase.until - first)
    if start > first:
        before.append(replace(phase, until=start, lr=(begin, now)))
    decay = replace(phase, until=start + updates, lr=(now, 0.0), rise=0)
    return replace(recipe, phases=(*before, decay))


def branch(recipe: Recipe, out: Path, name: str, updates: int) -> Recipe:
    """The recipe of a branch; its folder, `<name>-decay`, begins with the checkpoint of the trunk.

    Raises:
        CheckpointFault: the trunk has none.
    """
    folder = out / f"{name}-decay"
    start = folder / "branch.json"
    if not start.exists():
        source = out / name / "checkpoint.pt"
        if not source.exists():
            raise CheckpointFault(f"checkpoint {source}", why="it does not exist", instead=f"Train {name} first")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / "checkpoint.pt")
        for curve in ("loss.jsonl", "held_back.jsonl"):
            if (out / name / curve).exists():
                shutil.copy(out / name / curve, folder)
        step = checkpoint.load(folder / "checkpoint.pt")["step"]
        start.write_text(json.dumps({"start": step, "updates": updates}) + "\n")
    begun = json.loads(start.read_text())
    return with_decay(recipe, begun["start"], begun["updates"])

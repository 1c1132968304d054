"""Checkpoints of training: everything that a run needs to resume with the same result."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from unembed.errors import CheckpointFault
from unembed.results import whole_file


def previous(path: Path) -> Path:
    """The path of the previous checkpoint, which `save` leaves in place."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def save(state: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint atomically: a killed process leaves the previous one.

    The checkpoint that was there stays under the name of `previous(path)`.
    """
    with whole_file(path, durable=True) as temporary:
        # Through a Python file: on a full disk, torch reports only where its archive broke off.
        with temporary.open("wb") as file:
            torch.save(dict(state), file)
        if path.exists():
            previous(path).unlink(missing_ok=True)
            os.link(path, previous(path))


def load(path: Path) -> dict[str, Any]:
    """What `save` wrote.

    Raises:
        CheckpointFault: the file is damaged or not a checkpoint.
    """
    try:
        return torch.load(path, weights_only=True)
    except Exception as fault:
        instead = f"Rename {previous(path)} to it, or delete both to start again"
        raise CheckpointFault(
            f"checkpoint {path}",
            why=f"it is damaged or incomplete: {type(fault).__name__}: {fault}",
            instead=instead if previous(path).exists() else "Delete it to start again",
        ) from fault

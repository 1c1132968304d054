"""The checkpoints of one training run: folders within a folder, or revisions of a repository on the hub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from unembed.errors import InvalidInput, ModelUnavailable
from unembed.models.hub import is_path

_COUNT = re.compile(r"(steps?|tokens)[-_]?(\d+)$", re.IGNORECASE)


@dataclass(frozen=True)
class Checkpoint:
    """A saved state of a model in training.

    Attributes:
        name: the name of its folder or revision, such as "step1000".
        model: the model to open: the folder, or the repository.
        revision: the revision to open; None for a folder.
    """

    name: str
    model: str
    revision: str | None = None


def find_checkpoints(model: str, pattern: str, *, offline: bool = False) -> list[Checkpoint]:
    """Return the checkpoints whose names match a pattern, in the order of training.

    Args:
        model: a folder that contains a folder for each checkpoint, or a repository on the Hugging Face hub, of which
            each branch and tag is a checkpoint.
        pattern: a pattern as in a shell, such as "step*" or "step[12]000".
        offline: whether the network may not be used.

    Raises:
        InvalidInput: fewer than two names match, or a name does not end with its number of steps or tokens.
        ModelUnavailable: there is no such folder, or the repository's revisions cannot be listed.
    """
    folder = Path(model).expanduser()
    local = folder.is_dir()
    if not local and is_path(model):
        raise ModelUnavailable(
            f"no folder at {model}",
            why="there is no such folder",
            instead="Give a folder that contains a folder for each checkpoint",
        )
    names = [path.parent.name for path in folder.glob("*/config.json")] if local else _revisions(model, offline)
    found = sorted(name for name in names if fnmatchcase(name, pattern))
    if len(found) < 2:
        kind = "folders with a config.json" if local else "revisions"
        raise InvalidInput(
            f"--revisions {pattern!r}",
            why=f"{len(found)} of the {len(names)} {kind} of {model} match it, and a series needs at least two",
            instead="Give a pattern such as 'step*'",
        )
    _, counts = training_counts(found)
    ordered = [name for _, name in sorted(zip(counts, found, strict=True))]
    return [Checkpoint(name, str(folder / name)) if local else Checkpoint(name, model, name) for name in ordered]


def training_counts(names: Sequence[str]) -> tuple[str, list[int]]:
    """Return "steps" or "tokens", and the number with which each name ends, such as 1000 for "step1000".

    Raises:
        InvalidInput: a name does not end with its number of steps or tokens, some names state steps and others tokens,
            or two names state the same number.
    """
    found = [_COUNT.search(name) for name in names]
    for name, match in zip(names, found, strict=True):
        if match is None:
            raise InvalidInput(
                f"checkpoint {name!r}",
                why="its name does not end with a number of steps or tokens",
                instead="Use names such as step1000 or tokens2000000",
            )
    units = {"tokens" if match[1].lower() == "tokens" else "steps" for match in found if match is not None}
    counts = [int(match[2]) for match in found if match is not None]
    if len(units) > 1 or len(set(counts)) < len(names):
        why = "some names state steps and others tokens" if len(units) > 1 else "two names state the same number"
        raise InvalidInput(f"checkpoints {', '.join(names)}", why=why)
    return units.pop(), counts


def _revisions(repository: str, offline: bool) -> list[str]:
    if offline:
        raise ModelUnavailable(
            f"the revisions of {repository}",
            why="there is no such folder, and --offline forbids the network",
            instead="Give a folder with a folder for each checkpoint",
        )
    from huggingface_hub import HfApi

    try:
        references = HfApi().list_repo_refs(repository)
    except Exception as error:  # errors of the HTTP library, which differs between versions of huggingface_hub
        raise ModelUnavailable(
            f"the revisions of {repository}",
            why=f"there is no such folder, and the hub did not list them: {str(error).splitlines()[0]}",
            instead="Give a folder with a folder for each checkpoint",
        ) from error
    return [reference.name for reference in (*references.branches, *references.tags)]

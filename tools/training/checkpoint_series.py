"""A series of checkpoints of one short training, for `unembed report --revisions`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tools.training import export
from tools.training.loop import Progress, Run
from tools.training.networks import Shape
from tools.training.recipes import Phase, Recipe
from unembed.errors import InvalidInput

RECIPES: dict[str, Recipe] = {
    # Every sinusoid tells the positions of a row apart. Rows repeat after 16 to 26 tokens, so no fixed distance reaches
    # what followed the earlier occurrence, and none is the 29 tokens of the report's test. In the second half, three
    # windows of four are text as it is.
    "attn-2l": Recipe(
        Shape(
            n_layers=2,
            d_model=64,
            n_heads=4,
            d_head=16,
            d_mlp=0,
            d_vocab=2_048,
            context=64,
            position_size=2.0,
            position_base=64.0,
        ),
        (
            Phase(1_200, context=64, windows=4, repeated_windows=4, periods=(16, 26)),
            Phase(2_400, context=64, windows=4, repeated_windows=1, periods=(16, 26), lr=(1.0, 0.0)),
        ),
        adam_lr=0.001,
    ),
}
"""Short trainings."""
FIRST = 0.01
"""The first checkpoint, as a share of all updates."""


def spaced(updates: int, checkpoints: int) -> list[int]:
    """The updates after which a checkpoint is saved: a geometric series that ends with the last update.

    Raises:
        InvalidInput: fewer than two checkpoints, or too few updates for as many.
    """
    found = np.unique(np.geomspace(max(1.0, updates * FIRST), updates, max(2, checkpoints)).round().astype(int))
    if checkpoints < 2 or len(found) < checkpoints:
        raise InvalidInput(f"{checkpoints} checkpoints of {updates:,} updates", why="each needs updates of its own")
    return [int(step) for step in found]


def saved(run: Run, steps: list[int], tokenizer: Path, counts: Path, progress: Progress | None) -> Iterator[Path]:
    """Train and yield the folder of the model after each of these updates; those that exist are not made again.

    Args:
        run: the training, new or resumed.
        steps: as of `spaced`.
        tokenizer: the folder of the tokenizer, copied into each checkpoint.
        counts: the file of the training text's token counts, copied too.
        progress: called with each row of the loss curve.
    """
    for step in steps:
        folder = run.folder / f"step{step}"
        if not (folder / counts.name).exists():
            run.train(until=step, progress=progress)
            export.save(run.network, folder, n_positions=run.recipe.n_positions)
            for file in (*tokenizer.glob("tokenizer*.json"), counts):
                shutil.copy(file, folder)
        yield folder

"""`unembed.train`: one name, one model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unembed.errors import InvalidInput
from unembed.results import make_folder, writing
from unembed.training import shipped_models, wikilm_mini
from unembed.training.shipped_models import WIKILM_MINI, recipe_of
from unembed.validation import as_str, positive_int, valid_seed

_RESUMES = "Make room, and run the same again: it continues from its last checkpoint"


def train(
    name: str,
    *,
    corpus: str | Path | None,
    out: str | Path,
    until: int | None = None,
    layers: int | None = None,
    width: int | None = None,
    steps: int | None = None,
    bfloat16: bool = False,
    threads: int | None = None,
    seed: int | None = None,
    compiled: bool = True,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> Path:
    """Train a shipped model again, or a small WikiLM, and return the folder that `unembed.load` opens.

    Args:
        name: wren, attn-0l, attn-1l, attn-2l, or wikilm-mini.
        corpus: a folder of `*.jsonl.xz`; for wikilm-mini also a text file, or None for the shipped sample.
        out: where checkpoints, curve and model go.
        until: stop after this many updates; called again, it continues from there.
        layers: of a wikilm-mini, 6 if not given; another size is named after it, wikilm-mini-8x512.
        width: of its stream, 192 if not given; its layers have four times as many memories.
        steps: its updates in all, over which the learning rate rises and falls; 2,000 if not given.
        bfloat16: train a wikilm-mini in bfloat16, which is faster on processors that support it.
        threads: how many threads torch may use.
        seed: of weights and batches; the recipe's if not given.
        compiled: whether wren and attn-* go through `torch.compile`.
        progress: called with rows of the loss curve.

    Raises:
        InvalidInput: there is no such model or size, or no corpus is named for one that needs it.
        CorpusUnreadable: the corpus holds no text that can be read.
        CheckpointFault: a checkpoint in `out` is damaged or of another recipe.
        UnembedError: the disk is full, or `out` cannot be written to.
    """
    if threads is not None:
        torch.set_num_threads(positive_int("threads", threads, most=4096))
    if until is not None:
        until = positive_int("until", until)
    if seed is not None:
        seed = valid_seed(seed)
    if as_str("model", name) == WIKILM_MINI:
        mini = wikilm_mini.Mini()
        mini = replace(
            mini.sized(
                mini.n_layers if layers is None else positive_int("layers", layers, most=1000),
                mini.d_model if width is None else positive_int("width", width, most=2**16),
            ),
            steps=mini.steps if steps is None else positive_int("steps", steps),
            seed=mini.seed if seed is None else seed,
            bfloat16=bfloat16,
        )
        size = "" if layers is None and width is None else f"-{mini.n_layers}x{mini.d_model}"
        folder = make_folder(Path(out) / f"{name}{size}")
        words = wikilm_mini.text_of(None if corpus is None else str(corpus))
        with writing(folder, instead=_RESUMES):
            return wikilm_mini.train(words, folder, mini, progress, until)
    recipe = recipe_of(name)
    if bfloat16 or any(size is not None for size in (layers, width, steps)):
        raise InvalidInput(
            f"another size of {name}",
            why="its recipe is fixed",
            instead=f"Give sizes and bfloat16 to {WIKILM_MINI} only",
        )
    if corpus is None:
        raise InvalidInput(
            f"training {name}",
            why="no corpus is named, and the shipped sample is too small for it",
            instead="Give a folder of xz-compressed JSON lines with a `text` in each",
        )
    make_folder(out)
    recipe = recipe if seed is None else replace(recipe, seed=seed)
    with writing(out, instead=_RESUMES):
        return shipped_models.train(
            name, corpus=corpus, out=out, until=until, compiled=compiled, recipe=recipe, progress=progress
        )

"""`python -m tools.train_models --corpus FOLDER`: every shipped model again, one after the other."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

import unembed
from tools.changing_values import changing
from tools.training.checkpoint_series import RECIPES as OF_SERIES
from tools.training.checkpoint_series import saved, spaced
from tools.training.gradients import OneProcess
from tools.training.loop import CHANGING, Progress, Run
from tools.training.recipes import RECIPES, Recipe
from tools.training.shipped_models import encoded_text, finished, from_bigrams, recipe_of
from tools.two_processes import TwoProcesses
from tools.warm_start import begin_from, milestone_of
from unembed.errors import InvalidInput, UnembedError


def train_model(
    name: str,
    *,
    corpus: Path,
    out: Path,
    until: int | None = None,
    tokenizer: Path | None = None,
    start: Path | None = None,
    processes: int = 1,
    compiled: bool = True,
    recipe: Recipe | None = None,
    progress: Progress | None = None,
) -> Path:
    """Train one of the shipped models, or continue where a killed run stopped, and return the folder with its files.

    Before the first phase with `agreement`, the values that change in it are chosen (see `changing_values`).

    Args:
        name: wren, attn-0l, attn-1l or attn-2l.
        corpus: a folder of `*.jsonl.xz`, one JSON object with `text` (and, if known, `id` and `source`) a line.
        out: where everything goes: `tokenizer/`, `text/`, `<name>/checkpoint.pt`, `<name>/loss.jsonl`, and the model
            itself in `<name>/model/`.
        until: stop after this many updates; the next call continues from there.
        tokenizer: a folder with a `tokenizer.json` to use; without it one is made from the corpus.
        start: an exported model whose weights a run without a checkpoint begins from (see `warm_start`).
        processes: 1, or 2 of one thread each, which on two processor cores is faster and gives the same bits.
        compiled: whether the loss goes through `torch.compile`.
        recipe: sizes and phases other than those of the shipped model.
        progress: called with a row of the loss curve every ten updates.

    Raises:
        InvalidInput: there is no such model, or `until` is given for a model without layers.
        CorpusUnreadable: the corpus folder holds no shards, or a damaged one.
        CheckpointFault: a checkpoint in `out` is damaged or of another recipe.
    """
    recipe = recipe or recipe_of(name)
    text, held_back = encoded_text(corpus, out, recipe.shape.d_vocab, tokenizer)
    if not recipe.shape.n_layers:
        if until is not None:
            raise InvalidInput(
                f"stopping {name}", why="it is fitted to bigram counts in a few minutes without checkpoints"
            )
        return from_bigrams(name, recipe, text, out, progress)
    engine = TwoProcesses if processes > 1 else OneProcess

    def trained(until: int | None) -> Path:
        run = Run(recipe, text, out / name, held_back=held_back, compiled=compiled, engine=engine)
        if start is not None and not run.checkpoint_path.exists():
            begin_from(run, start, Tokenizer.from_file(str(out / "tokenizer" / "tokenizer.json")))
        folder = finished(run, out, until, progress)
        milestone_of(run).save(folder)
        return folder

    marks = out / name / CHANGING
    if recipe.agreement_begins < (recipe.steps if until is None else until) and not marks.exists():
        lm = unembed.load(str(trained(recipe.agreement_begins)), tokenizer=str(out / "tokenizer"))
        np.save(marks, changing(lm))
    return trained(until)


def train_series(
    name: str,
    *,
    corpus: Path,
    out: Path,
    checkpoints: int,
    processes: int = 1,
    compiled: bool = True,
    progress: Progress | None = None,
) -> Path:
    """Train a small model of a shipped model's kind for a short time, and return the folder of its checkpoints.

    Each is a folder `step<updates>` with a model and its tokenizer, which is made from the corpus. A killed run
    continues where it stopped.

    Args:
        name: attn-2l.
        corpus: see `train_model`.
        out: everything goes to `<name>-series/` in it.
        checkpoints: how many, as of `spaced`.
        processes: see `train_model`.
        compiled: see `train_model`.
        progress: see `train_model`.

    Raises:
        InvalidInput: there is no short recipe of that model, or too few or too many checkpoints.
        CorpusUnreadable: see `train_model`.
        CheckpointFault: see `train_model`.
    """
    if name not in OF_SERIES:
        raise InvalidInput(
            f"checkpoints of {name}", why="there is no short recipe for it", instead=f"Use {' or '.join(OF_SERIES)}"
        )
    recipe = OF_SERIES[name]
    steps = spaced(recipe.steps, checkpoints)
    folder = out / f"{name}-series"
    text, held_back = encoded_text(corpus, folder, recipe.shape.d_vocab)
    engine = TwoProcesses if processes > 1 else OneProcess
    run = Run(recipe, text, folder, held_back=held_back, compiled=compiled, engine=engine)
    try:
        for _ in saved(run, steps, folder / "tokenizer", folder / "token_counts.json", progress):
            pass
    finally:
        run.close()
    return folder


def main(arguments: list[str] | None = None) -> int:
    """Train the named models (all, if none is named); a killed run resumes when it is started again."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_models", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"some of {', '.join(RECIPES)}; all if none is named")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of *.jsonl.xz with a `text` in each line")
    parser.add_argument("--out", type=Path, default=Path("models"), help="where checkpoints, curves and models go")
    parser.add_argument("--tokenizer", type=Path, help="folder of a tokenizer to use instead of making one")
    parser.add_argument(
        "--begin-from", type=Path, metavar="MODEL", help="weights to begin from, where no checkpoint is"
    )
    parser.add_argument("--threads", type=int, help="threads for torch")
    parser.add_argument("--until", type=int, help="stop after this many updates")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=1, help="2 share the work on two cores")
    parser.add_argument("--checkpoints", type=int, metavar="N", help="train briefly, and save N checkpoints on the way")
    parser.add_argument("--no-compile", action="store_true", help="do without a C++ compiler, at about half the speed")
    given = parser.parse_args(arguments)

    if given.threads is not None:
        torch.set_num_threads(given.threads)

    def show(row: dict[str, Any]) -> None:
        print(" ".join(f"{key} {value}" for key, value in row.items()), file=sys.stderr, flush=True)

    shared = {name: getattr(given, name) for name in ("corpus", "out", "processes")}
    shared |= {"compiled": not given.no_compile, "progress": show}
    for name in given.names or RECIPES:
        try:
            if given.checkpoints is not None:
                folder = train_series(name, checkpoints=given.checkpoints, **shared)
            else:
                folder = train_model(
                    name, until=given.until, start=given.begin_from, tokenizer=given.tokenizer, **shared
                )
        except UnembedError as fault:
            print(fault, file=sys.stderr)
            return 1
        print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tools.train_wikilm`: a small WikiLM, the papers' kind of model, from any text."""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tools.training import wikilm_mini
from tools.training.checkpoint_series import spaced
from unembed.errors import UnembedError
from unembed.results import make_folder, writing
from unembed.validation import positive_int

_RESUMES = "Make room, and run the same again: it continues from its last checkpoint"


def main(arguments: list[str] | None = None) -> int:
    """Train a small WikiLM and print the folder that `unembed.load` opens; an interrupted run resumes."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_wikilm", description=main.__doc__)
    parser.add_argument("--corpus", help="text file or folder of *.jsonl.xz; the shipped sample if not given")
    parser.add_argument("--out", type=Path, default=Path("models"), help="folder for the model's folder")
    parser.add_argument("--until", type=int, help="stop after this many updates")
    parser.add_argument("--layers", type=int, help="layers, 6 if not given; another size is in the folder's name")
    parser.add_argument("--width", type=int, help="width of the stream, 192 if not given")
    parser.add_argument("--steps", type=int, default=2000, help="total number of updates")
    parser.add_argument("--checkpoints", type=int, metavar="N", help="keep N checkpoints too, in step* in that folder")
    parser.add_argument("--bfloat16", action="store_true", help="faster on processors that support it")
    parser.add_argument("--threads", type=int, help="threads for torch")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batches")
    given = parser.parse_args(arguments)

    if given.threads is not None:
        torch.set_num_threads(given.threads)

    def show(row: dict[str, Any]) -> None:
        print(" ".join(f"{key} {value}" for key, value in row.items()), file=sys.stderr, flush=True)

    mini = wikilm_mini.Mini()
    try:
        mini = replace(
            mini.sized(
                mini.n_layers if given.layers is None else positive_int("layers", given.layers),
                mini.d_model if given.width is None else positive_int("width", given.width),
            ),
            steps=positive_int("steps", given.steps),
            seed=given.seed,
            bfloat16=given.bfloat16,
        )
        named = given.layers is not None or given.width is not None
        size = f"-{mini.n_layers}x{mini.d_model}" if named else ""
        kept = [] if given.checkpoints is None else spaced(mini.steps, given.checkpoints)
        text = wikilm_mini.text_of(given.corpus)
        folder = make_folder(given.out / f"wikilm-mini{size}")
        with writing(folder, instead=_RESUMES):
            for step in kept:
                to = folder / f"step{step}"
                if not to.exists():
                    made = wikilm_mini.train(text, folder, mini, show, step)
                    shutil.copytree(made, to, ignore=shutil.ignore_patterns("step*", "checkpoint*"))
            print(folder if kept else wikilm_mini.train(text, folder, mini, show, given.until))
    except UnembedError as fault:
        print(fault, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

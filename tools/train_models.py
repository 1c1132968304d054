"""`python -m tools.train_models --corpus FOLDER`: every shipped model again, one after the other."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from unembed.errors import UnembedError
from unembed.training.recipes import RECIPES
from unembed.training.shipped_models import train


def main(arguments: list[str] | None = None) -> int:
    """Train the named models (all, if none is named); killed and started again, it goes on where it was."""
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
    parser.add_argument("--decay", type=int, metavar="N", help="branch off, and let the rate fall to zero in N updates")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=1, help="2 share the work on two cores")
    parser.add_argument("--no-compile", action="store_true", help="do without a C++ compiler, at about half the speed")
    given = parser.parse_args(arguments)

    def show(row: dict[str, Any]) -> None:
        print(" ".join(f"{key} {value}" for key, value in row.items()), file=sys.stderr, flush=True)

    for name in given.names or RECIPES:
        try:
            folder = train(
                name,
                corpus=given.corpus,
                out=given.out,
                until=given.until,
                tokenizer=given.tokenizer,
                begin_from=given.begin_from,
                decay=given.decay,
                threads=given.threads,
                processes=given.processes,
                compiled=not given.no_compile,
                progress=show,
            )
        except UnembedError as fault:
            print(fault, file=sys.stderr)
            return 1
        print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`unembed train`: a shipped model made again, or a small WikiLM made."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from unembed.cli import options

Name = Annotated[str, typer.Argument(help="wren, attn-0l, attn-1l, attn-2l, or wikilm-mini.", show_default=False)]


def train(
    name: Name,
    corpus: Annotated[
        str | None,
        typer.Option(help="Folder of *.jsonl.xz; wikilm-mini also takes a text file, or the shipped sample if none."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for checkpoints, curve and model.")] = Path("models"),
    until: Annotated[int | None, typer.Option(min=1, help="Stop after this many updates.", show_default=False)] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Of wikilm-mini.", show_default="6")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Of wikilm-mini's stream.", show_default="192")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Updates of wikilm-mini in all.", show_default="2000")
    ] = None,
    bfloat16: Annotated[
        bool,
        typer.Option("--bfloat16", help="Train wikilm-mini in bfloat16: half the time where the processor has it."),
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads for torch.", show_default=False)] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights and batches; default: the recipe's.")] = None,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile the loss: needs a C++ compiler, twice as fast.")
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Train a model and leave a folder that `--model` opens; stopped and started again, it goes on."""
    import unembed

    def show(row: dict[str, Any]) -> None:
        print(" ".join(f"{key} {value}" for key, value in row.items()), file=sys.stderr, flush=True)

    folder = unembed.train(
        name,
        corpus=corpus,
        out=out,
        until=until,
        layers=layers,
        width=width,
        steps=steps,
        bfloat16=bfloat16,
        threads=threads,
        seed=seed,
        compiled=compiled,
        progress=show,
    )
    if as_json:
        print(json.dumps({"schema": "unembed.train/1", "model": name, "folder": str(folder)}))
    else:
        print(folder)

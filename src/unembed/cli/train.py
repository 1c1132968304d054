"""`unembed train`: a shipped model made again, or a small WikiLM made."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from unembed.cli import options
from unembed.names import Point

Name = Annotated[
    str,
    typer.Argument(help="wren, attn-0l, attn-1l, attn-2l, wikilm-mini, or dictionary.", show_default=False),
]


def train(
    name: Name,
    corpus: Annotated[
        str | None,
        typer.Option(help="Folder of *.jsonl.xz; wikilm-mini also takes a text file, or the shipped sample if none."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for checkpoints, curve and model.")] = Path("models"),
    until: Annotated[int | None, typer.Option(min=1, help="Stop after this many updates.", show_default=False)] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Layers of wikilm-mini.", show_default="6")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Width of wikilm-mini's stream.", show_default="192")] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Total number of updates of wikilm-mini or a dictionary.", show_default="2000"),
    ] = None,
    bfloat16: Annotated[
        bool,
        typer.Option(
            "--bfloat16", help="Train wikilm-mini in bfloat16, which is faster on processors that support it."
        ),
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads for torch.", show_default=False)] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="Model whose activations a dictionary is trained on.")
    ] = "wren",
    layer: Annotated[int | None, typer.Option(help="Layer that a dictionary reads; default: the middle one.")] = None,
    point: Annotated[Point, typer.Option(help="Capture point that a dictionary reads.")] = "resid_post",
    features: Annotated[int, typer.Option(min=1, help="Number of features of a dictionary.")] = 2048,
    active: Annotated[int, typer.Option(min=1, help="Features of a dictionary that are active per position.")] = 32,
    seed: Annotated[int | None, typer.Option(help="Seed of weights and batches; default: the recipe's.")] = None,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile the loss: needs a C++ compiler, twice as fast.")
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Train a model and write a folder that `--model` opens; an interrupted run resumes."""
    import unembed

    def show(row: dict[str, Any]) -> None:
        print(" ".join(f"{key} {value}" for key, value in row.items()), file=sys.stderr, flush=True)

    if name == "dictionary":
        from unembed.cli.model_loading import opened

        lm = opened(model)
        at = lm.n_layers // 2 if layer is None else lm.layer(layer)
        folder = out / f"dictionary-{lm.name.replace('/', '-')}-{point}-{at}"
        unembed.train_dictionary(
            lm,
            unembed.open_corpus(corpus),
            at,
            point,
            features=features,
            k=active,
            steps=2000 if steps is None else steps,
            seed=0 if seed is None else seed,
            out=folder,
            progress=show,
        )
        print(json.dumps({"schema": "unembed.train/1", "model": name, "folder": str(folder)}) if as_json else folder)
        return
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

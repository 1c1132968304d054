"""`unembed train`: a dictionary of a model's activations."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from unembed.cli import options
from unembed.errors import InvalidInput
from unembed.names import Point


def train(
    name: Annotated[str, typer.Argument(help="What to train: dictionary.", show_default=False)],
    corpus: Annotated[str | None, typer.Option(help="Text to train on; the shipped sample if not given.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the dictionary's folder.")] = Path("models"),
    steps: Annotated[int, typer.Option(min=1, help="Number of updates.")] = 2000,
    model: Annotated[str, typer.Option("--model", "-m", help="Model whose activations are trained on.")] = "wren",
    layer: Annotated[int | None, typer.Option(help="Layer that is read; default: the middle one.")] = None,
    point: Annotated[Point, typer.Option(help="Capture point that is read.")] = "resid_post",
    features: Annotated[int, typer.Option(min=1, help="Number of features.")] = 2048,
    active: Annotated[int, typer.Option(min=1, help="Features that are active per position.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of weights and batches.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Train a dictionary and write a folder that `lm.attach` opens."""
    if name != "dictionary":
        raise InvalidInput(
            f"training {name!r}",
            why="this command trains dictionaries only; language models are trained by the scripts of the repository",
            instead="There, run `make models`, or `python -m tools.train_wikilm` for a small WikiLM (docs/models.md)",
        )
    import unembed
    from unembed.cli.model_loading import opened

    def show(row: dict[str, Any]) -> None:
        print(" ".join(f"{key} {value}" for key, value in row.items()), file=sys.stderr, flush=True)

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
        steps=steps,
        seed=seed,
        out=folder,
        progress=show,
    )
    print(json.dumps({"schema": "unembed.train/1", "model": name, "folder": str(folder)}) if as_json else folder)

"""`unembed train`: train a sparse dictionary (an autoencoder) on a model's activations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from unembed.cli.command import command
from unembed.cli.option_groups import Json, Model, Opening
from unembed.cli.output import write_json
from unembed.errors import InvalidInput
from unembed.names import Point
from unembed.options import Corpus, Layer, Option, Out, Seed


@command("train", "unembed train dictionary --layer 4 --out models")
def train(
    name: Annotated[str, Option("What to train; the only choice is dictionary.")],
    corpus: Corpus = None,
    out: Out = None,
    steps: Annotated[int, Option("Number of optimizer steps.", low=1)] = 2000,
    model: Model = "wren",
    layer: Layer = None,
    point: Annotated[
        Point,
        Option("Activation to read, by its capture point, such as resid_post (the residual stream after a layer)."),
    ] = "resid_post",
    features: Annotated[int, Option("Number of features in the dictionary.", low=1)] = 2048,
    active: Annotated[int, Option("Number of features that are active at each position.", low=1)] = 32,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Train a sparse dictionary of activations, and write it to a folder that `lm.attach` opens.

    The activations are those of the middle layer unless --layer names another. The new folder is created in the folder
    models, or in --out.
    """
    if name != "dictionary":
        raise InvalidInput(
            f"training {name!r}",
            why="this command trains dictionaries only; language models are trained by scripts in the repository",
            instead="Run `make models` in the repository, or `python -m tools.train_wikilm` for a small WikiLM "
            "(docs/models.md)",
        )
    import unembed
    from unembed.cli.model_loading import opened

    def show(row: dict[str, Any]) -> None:
        print(" ".join(f"{key} {value}" for key, value in row.items()), file=sys.stderr, flush=True)

    lm = opened(Opening(model=model))
    at = lm.n_layers // 2 if layer is None else lm.layer(layer)
    folder = (out or Path("models")) / f"dictionary-{lm.name.replace('/', '-')}-{point}-{at}"
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
    if as_json:
        write_json({"schema": "unembed.train/1", "model": name, "folder": str(folder)})
    else:
        print(folder)

"""Give values back what they were before phases with `agreement` that cost them their concept and brought nothing.

`python -m tools.restore_values wren EARLIER --out models --to FOLDER`

Restored are values of `models/wren/changing.npy` that have an automatic concept in the model EARLIER and none in
`models/wren/model`, and whose first token follows none of their key's ten strongest positions in a million tokens of
the training text. FOLDER is a copy of the model with these values as in EARLIER, and `changing.npy` without them:
`tools.train_models --begin-from FOLDER` goes on from there.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

import unembed
from tools.training import encoding
from tools.training.loop import CHANGING
from unembed.concepts.value_concepts import vector_concepts
from unembed.errors import UnembedError

WINDOWS, WIDTH = 4_000, 256  # of the training text, at even distances
TRIGGERS = 10
BATCH = 32
WEIGHTS = "model.safetensors"


@torch.no_grad()
def followers(model: GPT2LMHeadModel, tokens: np.ndarray) -> Int[Tensor, "layer k d_mlp"]:
    """The tokens after the strongest positions of each memory of the upper half; -1 where it is not active."""
    starts = np.linspace(0, len(tokens) - 1 - WIDTH, WINDOWS).astype(np.int64)
    windows = torch.from_numpy(tokens[starts[:, None] + np.arange(WIDTH + 1)].astype(np.int64))
    upper = [block.get_submodule("mlp.c_fc") for block in list(model.transformer.h)[len(model.transformer.h) // 2 :]]
    reads: dict[int, Tensor] = {}
    handles = [layer.register_forward_hook(partial(_store, reads, n)) for n, layer in enumerate(upper)]
    d_mlp = upper[0].get_parameter("weight").shape[1]  # (d_model, d_mlp)
    strongest = torch.zeros(len(upper), TRIGGERS, d_mlp)
    follow = torch.full(strongest.shape, -1)
    for rows in windows.split(BATCH):
        model.transformer(rows[:, :-1])
        after = rows[:, 1:].reshape(-1, 1).expand(-1, d_mlp)  # (pos, d_mlp)
        for n in range(len(upper)):
            best = torch.cat([strongest[n], reads[n].flatten(0, 1)]).topk(TRIGGERS, dim=0)
            follow[n] = torch.cat([follow[n], after]).gather(0, best.indices)
            strongest[n] = best.values
    for handle in handles:
        handle.remove()
    return follow


def _store(reads: dict[int, Tensor], n: int, module: nn.Module, given: tuple[Tensor, ...], read: Tensor) -> None:
    reads[n] = read


def restorable(
    later: unembed.LanguageModel, earlier: unembed.LanguageModel, follow: Int[Tensor, "layer k d_mlp"]
) -> Bool[np.ndarray, "layer d_mlp"]:
    """Values of the upper half that lost their concept and whose first token is not in `follow`."""
    rows = []
    for n, layer in enumerate(range(later.n_layers // 2, later.n_layers)):
        before, values = (lm.weights.W_out[layer].float() for lm in (earlier, later))
        scores = (values @ later.weights.W_U.float()).masked_fill(later.unlisted, -torch.inf)
        agrees = (follow[n] == scores.argmax(-1)).any(0).numpy()
        had, has = vector_concepts(earlier, before).number() > 0, vector_concepts(later, values).number() > 0
        rows.append(had & ~has & ~agrees)
    return np.stack(rows)


def restore(name: str, earlier_folder: Path, *, out: Path, to: Path) -> str:
    """Write the folder; how many values are as they were."""
    run, tokenizer = out / name, str(out / "tokenizer")
    later, earlier = (
        unembed.load(str(folder), tokenizer=tokenizer, dtype="float32") for folder in (run / "model", earlier_folder)
    )
    model = GPT2LMHeadModel.from_pretrained(run / "model", dtype=torch.float32)
    follow = followers(model, encoding.load(out / "text" / "train.npz").tokens)
    marks = np.load(run / CHANGING)
    chosen = restorable(later, earlier, follow) & marks
    shutil.copytree(run / "model", to)
    np.save(to / CHANGING, marks & ~chosen)
    weights, before = load_file(run / "model" / WEIGHTS), load_file(earlier_folder / WEIGHTS)
    for layer, restored in enumerate(torch.from_numpy(chosen), start=later.n_layers // 2):
        values = f"transformer.h.{layer}.mlp.c_proj.weight"  # (d_mlp, d_model)
        weights[values] = torch.where(restored[:, None], before[values], weights[values])
    save_file(weights, to / WEIGHTS, metadata={"format": "pt"})
    return f"{chosen.sum():,} of {marks.sum():,} values are as they were"


def main(arguments: list[str] | None = None) -> int:
    """Write the folder that is named."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("name", help="the model that was trained")
    parser.add_argument("earlier", type=Path, help="the exported model before the phases with agreement")
    parser.add_argument("--out", type=Path, default=Path("models"), help="where training wrote")
    parser.add_argument("--to", type=Path, required=True, help="the new folder")
    given = parser.parse_args(arguments)
    try:
        print(restore(given.name, given.earlier, out=given.out, to=given.to))
    except (OSError, UnembedError) as fault:
        print(fault, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

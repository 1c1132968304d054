"""One model from a folder of text to the folder that ships: the steps in order, each kept on disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from unembed.errors import InvalidInput
from unembed.training import encoding, export
from unembed.training.documents import documents
from unembed.training.encoding import encode
from unembed.training.loop import Run
from unembed.training.recipes import RECIPES, Recipe
from unembed.training.vocabulary import fit_vocabulary, piece_counts, save_tokenizer, word_counts
from unembed.training.windows import EncodedCorpus

Progress = Callable[[dict[str, Any]], None]


def train(
    name: str,
    *,
    corpus: str | Path,
    out: str | Path,
    until: int | None = None,
    tokenizer: str | Path | None = None,
    threads: int | None = None,
    compiled: bool = True,
    recipe: Recipe | None = None,
    progress: Progress | None = None,
) -> Path:
    """Train one of the shipped models, or go on where a killed run stopped, and return the folder with its files.

    Args:
        name: wren, attn-1l or attn-2l.
        corpus: a folder of `*.jsonl.xz`, one JSON object with `text` (and, if known, `id` and `source`) a line.
        out: where everything goes: `tokenizer/`, `text/`, `<name>/checkpoint.pt`, `<name>/loss.jsonl`, and the model
            itself in `<name>/model/`.
        until: stop after this many updates; the next call goes on from there.
        tokenizer: a folder with a `tokenizer.json` to use; without it one is made from the corpus.
        threads: how many threads torch may use; as it is set if not given.
        compiled: whether the loss goes through `torch.compile`, which needs a C++ compiler and is about twice as fast.
        recipe: sizes and phases other than those of the shipped model.
        progress: called with a row of the loss curve every ten updates.

    Raises:
        InvalidInput: there is no such model.
        CorpusUnreadable: the corpus folder holds no shards, or a damaged one.
        CheckpointFault: a checkpoint in `out` is damaged or of another recipe.
    """
    if recipe is None:
        if name not in RECIPES:
            raise InvalidInput(
                f"model {name!r}", why="no recipe bears that name", instead=f"Take one of {', '.join(RECIPES)}"
            )
        recipe = RECIPES[name]
    if threads is not None:
        torch.set_num_threads(threads)
    out = Path(out)
    text = _encoded(Path(corpus), out, None if tokenizer is None else Path(tokenizer))
    run = Run(recipe, text, out / name, compiled=compiled)
    run.train(until=until, progress=progress)
    folder = out / name / "model"
    export.save(run.network, folder, n_positions=recipe.n_positions)
    shutil.copy(out / "token_counts.json", folder)
    shutil.copy(run.folder / "loss.jsonl", folder)
    return folder


def _encoded(corpus: Path, out: Path, given: Path | None) -> EncodedCorpus:
    """The training text as token ids; made once, with the tokenizer, then read."""
    path = out / "text" / "train.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        every = list(documents(corpus))
        trained = [document for document in every if not document.is_held_back]
        counts = word_counts(document.text for document in trained)
        if given is None:
            tokenizer = fit_vocabulary([document.text for document in trained[::3]], counts, size=8192 - 257)
            save_tokenizer(tokenizer, out / "tokenizer", context=512)
        else:
            shutil.copytree(given, out / "tokenizer", dirs_exist_ok=True)
            tokenizer = Tokenizer.from_file(str(given / "tokenizer.json"))
        used = piece_counts(tokenizer, counts)
        used[0] = len(trained)
        (out / "token_counts.json").write_text(json.dumps(used.tolist()) + "\n")
        held_back = [document for document in every if document.is_held_back]
        if held_back:
            encoding.save(encode(tokenizer, held_back), out / "text" / "held_back.npz")
        encoding.save(encode(tokenizer, trained), path)
    return encoding.load(path)

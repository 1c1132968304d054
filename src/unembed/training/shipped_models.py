"""One model from a folder of text to the folder that ships: the steps in order, each saved to disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from unembed.errors import CheckpointFault, InvalidInput
from unembed.training import checkpoint, encoding, export, recipes
from unembed.training.bigram_model import bigram_counts, fit_bigrams
from unembed.training.documents import documents, split
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
    decay: int | None = None,
    tokenizer: str | Path | None = None,
    begin_from: str | Path | None = None,
    threads: int | None = None,
    processes: int = 1,
    compiled: bool = True,
    recipe: Recipe | None = None,
    progress: Progress | None = None,
) -> Path:
    """Train one of the shipped models, or continue where a killed run stopped, and return the folder with its files.

    Args:
        name: wren, attn-0l, attn-1l or attn-2l.
        corpus: a folder of `*.jsonl.xz`, one JSON object with `text` (and, if known, `id` and `source`) a line.
        out: where everything goes: `tokenizer/`, `text/`, `<name>/checkpoint.pt`, `<name>/loss.jsonl`, and the model
            itself in `<name>/model/`.
        until: stop after this many updates; the next call continues from there.
        decay: copy the checkpoint to `<name>-decay/`, and make this many updates there with a rate that falls to zero.
            A branch that was stopped continues.
        tokenizer: a folder with a `tokenizer.json` to use; without it one is made from the corpus.
        begin_from: an exported model whose weights a run without a checkpoint begins from (see `warm_start`).
        threads: how many threads torch may use; unchanged if not given.
        processes: 1, or 2 of one thread each, which on two processor cores is faster and gives the same bits.
        compiled: whether the loss goes through `torch.compile`, which needs a C++ compiler and is about twice as fast.
        recipe: sizes and phases other than those of the shipped model.
        progress: called with a row of the loss curve every ten updates.

    Raises:
        InvalidInput: there is no such model, `begin_from` is of other sizes, or `until` or `decay` is given for a model
            without layers.
        CorpusUnreadable: the corpus folder holds no shards, or a damaged one.
        CheckpointFault: a checkpoint in `out` is damaged or of another recipe.
    """
    if recipe is None:
        if name not in RECIPES:
            raise InvalidInput(
                f"model {name!r}", why="there is no recipe of that name", instead=f"Use one of {', '.join(RECIPES)}"
            )
        recipe = RECIPES[name]
    if threads is not None:
        torch.set_num_threads(threads)
    out = Path(out)
    text, held_back = _encoded(Path(corpus), out, None if tokenizer is None else Path(tokenizer), recipe.shape.d_vocab)
    if not recipe.shape.n_layers:
        if until is not None or decay is not None:
            raise InvalidInput(
                f"stopping or branching {name}", why="it is made from bigram counts, in one go of a few minutes"
            )
        return _from_bigrams(name, recipe, text, out, progress)
    if decay is not None:
        recipe = _branch(recipe, out, name, decay)
        name = f"{name}-decay"
    run = Run(recipe, text, out / name, held_back=held_back, compiled=compiled, processes=processes)
    try:
        if begin_from is not None and not run.checkpoint_path.exists():
            run.begin_from(Path(begin_from), Tokenizer.from_file(str(out / "tokenizer" / "tokenizer.json")))
        run.train(until=until, progress=progress)
    finally:
        run.close()
    folder = out / name / "model"
    export.save(run.network, folder, n_positions=recipe.n_positions)
    run.milestone.save(folder)
    shutil.copy(out / "token_counts.json", folder)
    shutil.copy(run.folder / "loss.jsonl", folder)
    recipes.save(recipe, run.folder / "recipe.json")
    return folder


def _from_bigrams(name: str, recipe: Recipe, text: EncodedCorpus, out: Path, progress: Progress | None) -> Path:
    """A model without layers, which needs only the pairs of adjacent tokens of a text."""
    folder = out / name / "model"
    network, curve = fit_bigrams(*bigram_counts(text, recipe.shape.d_vocab), recipe, progress)
    export.save(network, folder, n_positions=recipe.n_positions)
    shutil.copy(out / "token_counts.json", folder)
    (folder / "loss.jsonl").write_text("".join(json.dumps(row) + "\n" for row in curve))
    recipes.save(recipe, out / name / "recipe.json")
    return folder


def _branch(recipe: Recipe, out: Path, name: str, updates: int) -> Recipe:
    """The recipe of the branch whose rate falls to zero; its folder begins with the checkpoint of the trunk."""
    folder = out / f"{name}-decay"
    start = folder / "branch.json"
    if not start.exists():
        source = out / name / "checkpoint.pt"
        if not source.exists():
            raise CheckpointFault(f"checkpoint {source}", why="it does not exist", instead=f"Train {name} first")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / "checkpoint.pt")
        for curve in ("loss.jsonl", "held_back.jsonl"):
            if (out / name / curve).exists():
                shutil.copy(out / name / curve, folder)
        step = checkpoint.load(folder / "checkpoint.pt")["step"]
        start.write_text(json.dumps({"start": step, "updates": updates}) + "\n")
    branch = json.loads(start.read_text())
    return recipe.with_decay(branch["start"], branch["updates"])


def _encoded(corpus: Path, out: Path, given: Path | None, d_vocab: int) -> tuple[EncodedCorpus, EncodedCorpus | None]:
    """The training text and the held-back text as token ids; made once, with the tokenizer, then read."""
    path, held_back = out / "text" / "train.npz", out / "text" / "held_back.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = split(documents(corpus))
        counts = word_counts(document.text for document in parts.trained)
        if given is None:
            tokenizer = fit_vocabulary(counts, size=d_vocab - 257)
            save_tokenizer(tokenizer, out / "tokenizer", context=512)
        else:
            if given.resolve() != (out / "tokenizer").resolve():
                shutil.copytree(given, out / "tokenizer", dirs_exist_ok=True)
            tokenizer = Tokenizer.from_file(str(given / "tokenizer.json"))
        used = piece_counts(tokenizer, counts)
        used[0] = len(parts.trained)
        (out / "token_counts.json").write_text(json.dumps(used.tolist()) + "\n")
        if parts.held_back:
            encoding.save(encode(tokenizer, parts.held_back), held_back)
        encoding.save(encode(tokenizer, parts.trained), path)
    return encoding.load(path), encoding.load(held_back) if held_back.exists() else None

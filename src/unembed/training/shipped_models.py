"""One model from a folder of text to the folder that ships: the steps in order, each saved to disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from unembed.errors import InvalidInput
from unembed.training import encoding, export, recipes
from unembed.training.bigram_model import bigram_counts, fit_bigrams
from unembed.training.documents import as_read, documents, split
from unembed.training.encoding import encode
from unembed.training.loop import Run
from unembed.training.recipes import RECIPES, Recipe
from unembed.training.vocabulary import fit_vocabulary, piece_counts, save_tokenizer, word_counts
from unembed.training.windows import EncodedCorpus

Progress = Callable[[dict[str, Any]], None]
WIKILM_MINI = "wikilm-mini"


def train(
    name: str,
    *,
    corpus: str | Path,
    out: str | Path,
    until: int | None = None,
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
        compiled: whether the loss goes through `torch.compile`, which needs a C++ compiler and is about twice as fast.
        recipe: sizes and phases other than those of the shipped model.
        progress: called with a row of the loss curve every ten updates.

    Raises:
        InvalidInput: there is no such model, or `until` is given for a model without layers.
        CorpusUnreadable: the corpus folder holds no shards, or a damaged one.
        CheckpointFault: a checkpoint in `out` is damaged or of another recipe.
    """
    recipe, out = recipe or recipe_of(name), Path(out)
    text, held_back = encoded_text(Path(corpus), out, recipe.shape.d_vocab)
    if not recipe.shape.n_layers:
        if until is not None:
            raise InvalidInput(
                f"stopping {name}", why="it is fitted to bigram counts in a few minutes without checkpoints"
            )
        return _from_bigrams(name, recipe, text, out, progress)
    return finished(Run(recipe, text, out / name, held_back=held_back, compiled=compiled), out, until, progress)


def recipe_of(name: str) -> Recipe:
    """The recipe of a shipped model.

    Raises:
        InvalidInput: there is no such model.
    """
    if name not in RECIPES:
        names = ", ".join([*RECIPES, WIKILM_MINI])
        raise InvalidInput(f"model {name!r}", why="there is no recipe of that name", instead=f"Use one of {names}")
    return RECIPES[name]


def finished(run: Run, out: Path, until: int | None, progress: Progress | None) -> Path:
    """The folder of the model, after the run's updates up to `until` or its recipe's end."""
    try:
        run.train(until=until, progress=progress)
    finally:
        run.close()
    folder = run.folder / "model"
    export.save(run.network, folder, n_positions=run.recipe.n_positions)
    shutil.copy(out / "token_counts.json", folder)
    shutil.copy(run.folder / "loss.jsonl", folder)
    recipes.save(run.recipe, run.folder / "recipe.json")
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


def encoded_text(
    corpus: Path, out: Path, d_vocab: int, given: Path | None = None
) -> tuple[EncodedCorpus, EncodedCorpus | None]:
    """The training text and the held-back text as token ids.

    The first call makes the tokenizer and both files; later calls read the files.

    Args:
        corpus: the folder of the text.
        out: where both are written.
        d_vocab: rows of the embedding, for a tokenizer that is made from the corpus.
        given: a folder with a `tokenizer.json` to use instead.
    """
    path, held_back = out / "text" / "train.npz", out / "text" / "held_back.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = split(documents(corpus))
        trained = [as_read(document) for document in parts.trained]
        counts = word_counts(document.text for document in trained)
        if given is None:
            tokenizer = fit_vocabulary(counts, size=d_vocab - 257)
            save_tokenizer(tokenizer, out / "tokenizer", context=512)
        else:
            if given.resolve() != (out / "tokenizer").resolve():
                shutil.copytree(given, out / "tokenizer", dirs_exist_ok=True)
            tokenizer = Tokenizer.from_file(str(given / "tokenizer.json"))
        used = piece_counts(tokenizer, counts)
        used[0] = len(trained)
        (out / "token_counts.json").write_text(json.dumps(used.tolist()) + "\n")
        if parts.held_back:
            encoding.save(encode(tokenizer, parts.held_back), held_back)
        encoding.save(encode(tokenizer, trained), path)
    return encoding.load(path), encoding.load(held_back) if held_back.exists() else None

"""The steps from a folder of text to the folder of a model that ships, each saved to disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tools.training import encoding, export, recipes
from tools.training.bigram_model import bigram_counts, fit_bigrams
from tools.training.documents import as_read, documents, split
from tools.training.encoding import encode
from tools.training.loop import Run
from tools.training.recipes import RECIPES, Recipe
from tools.training.vocabulary import fit_vocabulary, piece_counts, save_tokenizer, word_counts
from tools.training.windows import EncodedCorpus
from unembed.errors import InvalidInput

Progress = Callable[[dict[str, Any]], None]


def recipe_of(name: str) -> Recipe:
    """The recipe of a shipped model.

    Raises:
        InvalidInput: there is no such model.
    """
    if name not in RECIPES:
        raise InvalidInput(
            f"model {name!r}", why="there is no recipe of that name", instead=f"Use one of {', '.join(RECIPES)}"
        )
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


def from_bigrams(name: str, recipe: Recipe, text: EncodedCorpus, out: Path, progress: Progress | None) -> Path:
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

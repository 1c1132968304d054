"""From a trained run to the folder that ships: weights, curve, and a model card measured on those files.

`python -m tools.publish_model wren --out models --to folder`
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

import unembed.models.architectures.attention_only  # noqa: F401 (registers the architecture)
from tools import card_text, model_cards
from tools.evaluation import bits_per_byte, repetition_gain
from tools.kneser_ney import KneserNey
from tools.training import encoding, export, recipes
from tools.training.documents import Document
from tools.training.loop import Run
from tools.training.recipes import RECIPES, Recipe
from tools.training.windows import EncodedCorpus
from tools.warm_start import milestone_of
from unembed.models.shipped_models import shipped_folder

COUNTED = 20_000_000  # tokens that the n-gram model is fitted to; counting takes 300 bytes of memory for each
MEASURED = 200_000  # tokens of held-back text that bits per byte are measured on
WIKITEXT = Path(__file__).parent.parent / "src" / "unembed" / "corpus" / "shipped" / "wikitext" / "valid.txt"


def publish(
    name: str,
    *,
    out: Path,
    to: Path,
    recipe: Recipe | None = None,
    themes: Path | None = None,
    small_runs: Path | None = None,
) -> str:
    """Write weights, curve, recipe, token counts and `README.md` of a run into `to`; the card's text.

    Args:
        name: a recipe's name.
        out: the folder that `train` wrote into.
        to: the folder that ships.
        recipe: sizes and phases, where the run's folder holds no `recipe.json`.
        themes: a JSON object from "layer.index" or "random 3" to the theme that a judge named (see `blind_themes`).
        small_runs: the table that `tools.small_runs` printed, for the card.
    """
    folder = out / name
    saved = folder / "recipe.json"
    recipe = recipes.load(saved) if saved.exists() else recipe or RECIPES[name]
    trained = Run(recipe, encoding.load(out / "text" / "train.npz"), folder, compiled=False)
    to.mkdir(parents=True, exist_ok=True)
    recipes.save(recipe, to / "recipe.json")
    export.save(trained.network, to, n_positions=recipe.n_positions)
    (to / "model.safetensors").chmod(0o644)
    shutil.copy(out / "token_counts.json", to)
    copy_tokenizer(out / "tokenizer", to)
    milestone_of(trained).save(to)
    model_cards.thinned_curve(trained.folder / "loss.jsonl", to / "loss.jsonl")
    model = AutoModelForCausalLM.from_pretrained(to, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(out / "tokenizer" / "tokenizer.json"))
    held_back = first_documents(encoding.load(out / "text" / "held_back.npz"), MEASURED)
    texts = {"held-back corpus text": held_back, "WikiText-103 validation": wikitext(tokenizer)}
    numbers = {
        title: bits_per_byte(
            model, text.tokens, int(text.n_bytes.sum()), context=recipe.n_positions or recipe.shape.context
        )
        for title, text in texts.items()
    }
    counted = (
        n_gram_bits(trained.corpus, texts, recipe.shape.d_vocab, cache=out / "kneser_ney.json")
        if recipe.shape.d_mlp
        else {}
    )
    n_counted = min(COUNTED, len(trained.corpus.tokens))
    parts = [
        card_text.opening(name, recipe, trained.n_tokens, trained.corpus),
        card_text.bits_table(numbers, counted, len(held_back.tokens), n_counted),
        card_text.curve_text(to / "loss.jsonl"),
    ]
    if small_runs is not None:
        parts += [card_text.small_runs(small_runs.read_text())]
    if recipe.shape.d_mlp:
        named = json.loads(themes.read_text()) if themes is not None else {}
        parts += [model_cards.samples(model, tokenizer), sixty(model, tokenizer, to, named)]
    else:
        parts += [card_text.heads(model_cards.scores_table(model), repetition_gain(model))]
    parts += [card_text.closing(recipe)]
    card = "\n".join(parts)
    (to / "README.md").write_text(card)
    return card


def first_documents(text: EncodedCorpus, n_tokens: int) -> EncodedCorpus:
    """The documents that end within the first `n_tokens`; the first one in any case."""
    n = max(1, int(np.searchsorted(text.lengths.cumsum(), n_tokens, side="right")))
    end = int(text.lengths[:n].sum())
    return replace(
        text, tokens=text.tokens[:end], lengths=text.lengths[:n], sources=text.sources[:n], n_bytes=text.n_bytes[:n]
    )


def copy_tokenizer(folder: Path, to: Path) -> None:
    """Copy the tokenizer of a run, unless it is the one that the shipped models share."""
    shared = shipped_folder("tokenizer") / "tokenizer.json"
    if (folder / "tokenizer.json").read_bytes() != shared.read_bytes():
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(folder / name, to)


def wikitext(tokenizer: Tokenizer) -> EncodedCorpus:
    """The default corpus as token ids."""
    return encoding.encode(tokenizer, [Document("wikitext", "wikitext", WIKITEXT.read_text(), work="wikitext")])


def n_gram_bits(
    corpus: EncodedCorpus, texts: dict[str, EncodedCorpus], d_vocab: int, *, cache: Path
) -> dict[str, float]:
    """Bits per byte of a 5-gram Kneser-Ney model of the beginning of the same text; counted once, then in `cache`."""
    if cache.exists():
        return json.loads(cache.read_text())
    counted = KneserNey.fit(corpus.tokens[:COUNTED], order=5, d_vocab=d_vocab)
    bits = {}
    for title, text in texts.items():
        probability = counted.probabilities(np.concatenate([[0], text.tokens]))[1:]
        bits[title] = float(-np.log2(probability).sum() / text.n_bytes.sum())
    cache.write_text(json.dumps(bits) + "\n")
    return bits


def sixty(model: PreTrainedModel, tokenizer: Tokenizer, folder: Path, named: dict[str, str]) -> str:
    """Sixty values and sixty random vectors, each with the theme that a judge gave it."""
    counts = torch.tensor(json.loads((folder / "token_counts.json").read_text()))
    unembedding = model.get_output_embeddings().weight.detach()  # type: ignore[union-attr]
    rows = [
        (name, model_cards.top_pieces(vector, unembedding, tokenizer, counts), named.get(name, ""))
        for name, vector in model_cards.named_vectors(model)
    ]
    return card_text.sixty(rows[: len(rows) // 2], rows[len(rows) // 2 :])


def main(arguments: list[str] | None = None) -> int:
    """Write one model's folder from its run."""
    parser = argparse.ArgumentParser(prog="python -m tools.publish_model", description=main.__doc__)
    parser.add_argument("name", choices=list(RECIPES))
    parser.add_argument("--out", type=Path, default=Path("models"), help="the folder that training wrote into")
    parser.add_argument("--to", type=Path, required=True, help="the folder to write")
    parser.add_argument(
        "--themes", type=Path, help="JSON: the theme of each value (5.278) or random vector (random 3) with one"
    )
    parser.add_argument("--small-runs", type=Path, help="Markdown: the table that tools.small_runs printed")
    given = parser.parse_args(arguments)
    print(publish(**vars(given)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

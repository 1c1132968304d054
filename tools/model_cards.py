"""Model cards, measured on the files that ship."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from tools.evaluation import prefix_matching_scores
from tools.warm_start import FIRST_PIECE

PROMPTS = (
    "The king of France was",
    "Once upon a time there was a little girl",
    "The capital of England is",
    "The old man was",
    "The river is",
)
SAMPLING = {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.1}
"""How `transformers` draws samples; min-p is the least probability, as a share of the highest (Nguyen et al. 2024)."""


def sixty_values(model: PreTrainedModel, *, n: int = 60, seed: int = 0) -> list[tuple[int, int, Tensor]]:
    """Layer, index and vector of `n` values drawn evenly from the upper half of a GPT-2-shaped model's layers."""
    transformer: Any = model.transformer
    layers = transformer.h
    n_layers, d_mlp = len(layers), layers[0].mlp.c_proj.weight.shape[0]
    first = (n_layers // 2) * d_mlp
    drawn = torch.randperm(n_layers * d_mlp - first, generator=torch.Generator().manual_seed(seed))[:n] + first
    places = sorted(divmod(int(i), d_mlp) for i in drawn)
    return [(layer, index, layers[layer].mlp.c_proj.weight[index].detach()) for layer, index in places]


def random_vectors(like: Sequence[Tensor], *, seed: int = 0) -> list[Tensor]:
    """Vectors of the same number and lengths, with directions drawn uniformly from the sphere."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(len(vector), generator=generator) for vector in like]
    return [d / d.norm() * vector.norm() for d, vector in zip(drawn, like, strict=True)]


def named_vectors(model: PreTrainedModel) -> list[tuple[str, Tensor]]:
    """Sixty values, named by layer and index (`5.278`), then the same number of random vectors (`random 3`)."""
    drawn = sixty_values(model)
    others = random_vectors([vector for *_, vector in drawn])
    values = [(f"{layer}.{index}", vector) for layer, index, vector in drawn]
    return [*values, *((f"random {i}", vector) for i, vector in enumerate(others))]


def top_pieces(
    vector: Tensor, unembedding: Tensor, tokenizer: Tokenizer, counts: Tensor, *, top: int = 20, least: int = 100
) -> list[str]:
    """The pieces that score highest under the unembedding alone.

    Those seen less than `least` times are left out, and single bytes of a character, which no reader recognises.
    """
    known = unembedding[: len(counts)]  # later rows have no token
    shown = counts >= least
    shown[FIRST_PIECE - 128 : FIRST_PIECE] = False
    best = (known @ vector).masked_fill(~shown, -torch.inf).topk(min(top, int(shown.sum()))).indices
    return [tokenizer.id_to_token(int(i)) or "" for i in best]


def as_cell(pieces: Sequence[str]) -> str:
    """Pieces in one Markdown cell; a leading space is shown as ·, which distinguishes words from endings."""
    shown = (piece.replace(" ", "·").replace("\n", "↵").replace("|", "¦").replace("`", "'") for piece in pieces)
    return " ".join(f"`{piece}`" for piece in shown)


def values_table(rows: Sequence[tuple[str, Sequence[str], str]]) -> str:
    """A Markdown table of vectors, their top pieces, and the theme that a judge named, if any."""
    lines = ["| vector | top 20 | theme |", "| --- | --- | --- |"]
    lines += [f"| {name} | {as_cell(pieces)} | {theme} |" for name, pieces, theme in rows]
    return "\n".join(lines) + "\n"


def sample(model: PreTrainedModel, tokenizer: Tokenizer, prompt: str, *, n_new: int = 60, seed: int = 0) -> str:
    """The prompt with a continuation, drawn as `SAMPLING` says."""
    return draws(model, tokenizer, prompt, n_new=n_new, seed=seed)[0]


def draws(
    model: PreTrainedModel, tokenizer: Tokenizer, prompt: str, *, n: int = 1, n_new: int = 60, seed: int = 0
) -> list[str]:
    """The prompt with `n` continuations."""
    ids = torch.tensor([tokenizer.encode(prompt).ids]).expand(n, -1)
    generating: Any = model  # generate() comes from a mixin that the type checker cannot resolve
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn = generating.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=GenerationConfig(
                do_sample=True, top_k=0, max_new_tokens=n_new, eos_token_id=0, pad_token_id=0, **SAMPLING
            ),
        )
    return [tokenizer.decode(row) for row in drawn.tolist()]


def samples(model: PreTrainedModel, tokenizer: Tokenizer) -> str:
    """The first continuation drawn for each of a few prompts."""
    lines = [f"> {sample(model, tokenizer, prompt, seed=i)}".replace("\n", "\n> ") for i, prompt in enumerate(PROMPTS)]
    drawn = (
        f"at temperature {SAMPLING['temperature']} from the tokens with at least {100 * SAMPLING['min_p']:.0f} % of\n"
        f"the highest probability (min-p), with a repetition penalty of {SAMPLING['repetition_penalty']}"
    )
    return f"## Samples\n\nThe first sample of each prompt, {drawn}.\n\n" + "\n\n".join(lines) + "\n"


def scores_table(model: PreTrainedModel, *, period: int = 64, first_id: int = 257) -> str:
    """A Markdown table: per head, attention to what followed the earlier occurrence, and to the token before."""
    induction, previous = prefix_matching_scores(model, period=period, first_id=first_id)
    n_heads = induction.shape[1]
    lines = [
        "| score | layer | " + " | ".join(f"head {h}" for h in range(n_heads)) + " |",
        "| --- " * (n_heads + 2) + "|",
    ]
    for name, scores in (("induction", induction), ("previous token", previous)):
        for layer, row in enumerate(scores.tolist()):
            lines.append(f"| {name} | {layer} | " + " | ".join(f"{score:.3f}" for score in row) + " |")
    return "\n".join(lines) + "\n"


def thinned_curve(source: Path, target: Path, *, every: int = 50) -> None:
    """Copy a loss curve: means over `every` steps, and all evaluations; the later row of a step that was repeated."""
    read: list[dict[str, Any]] = [json.loads(line) for line in source.read_text().splitlines()]
    losses = {row["step"]: row for row in read if "loss" in row}
    others = {(row["step"], next(iter(set(row) - {"step", "tokens"}))): row for row in read if "loss" not in row}
    rows = list(others.values())
    for end in sorted({-(-step // every) * every for step in losses}):
        part = [row for step, row in losses.items() if end - every < step <= end]
        mean = sum(row["loss"] for row in part) / len(part)
        rows.append({"step": part[-1]["step"], "tokens": part[-1]["tokens"], "loss": round(mean, 4)})
    rows.sort(key=lambda row: (row["step"], "loss" not in row))
    target.write_text("".join(json.dumps(row) + "\n" for row in rows))

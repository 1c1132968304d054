"""Bits per byte of a model on the text that its run held back, and on the beginning of WikiText-103 validation.

`python -m tools.bits_per_byte MODEL --out models --wikitext wikitext-103/valid.txt`

The held-back text is read in half-overlapping windows, so every token but the first few sees at least half a context.
WikiText (its first 400,000 characters) is read in windows of a whole context that share one token: every token is
predicted once, from the tokens before it in its window.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from tools.evaluation import bits_per_byte
from tools.training import encoding

N_CHARACTERS = 400_000


@torch.no_grad()
def bits_in_windows(model: PreTrainedModel, tokens: np.ndarray, n_bytes: int, *, context: int) -> float:
    """Bits per byte of a line of ids in windows of `context` predictions; neighbours share one token."""
    ids, nats = torch.from_numpy(tokens.astype(np.int64)), 0.0
    for start in range(0, len(ids) - 1, context):
        window = ids[None, start : start + context + 1]
        logits = model(window[:, :-1]).logits.float()
        nats += torch.nn.functional.cross_entropy(logits[0], window[0, 1:], reduction="sum").item()
    return nats / math.log(2) / n_bytes


def main() -> None:
    """Print one line of JSON for each model."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("models", nargs="+", type=Path, help="folders of models with one vocabulary")
    parser.add_argument("--out", type=Path, required=True, help="the folder that training wrote into")
    parser.add_argument("--wikitext", type=Path, help="WikiText-103 validation")
    given = parser.parse_args()
    held_back = encoding.load(given.out / "text" / "held_back.npz")
    tokenizer = Tokenizer.from_file(str(given.out / "tokenizer" / "tokenizer.json"))
    for folder in given.models:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        context = model.config.max_position_embeddings
        n_bytes = int(held_back.n_bytes.sum())
        row = {"model": str(folder), "held-back text": bits_per_byte(model, held_back.tokens, n_bytes, context=context)}
        if given.wikitext is not None:
            text = given.wikitext.read_text(encoding="utf-8")[:N_CHARACTERS]
            ids = np.array(tokenizer.encode(text).ids)
            row["WikiText-103"] = bits_in_windows(model, ids, len(text.encode()), context=context)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

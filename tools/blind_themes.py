"""Themes of values, judged blind: sixty values and sixty random vectors mixed, without their names.

python -m tools.blind_themes sheet MODEL TOKENIZER SHEET KEY     write the items to judge, and apart from them the key
python -m tools.blind_themes themes SHEET KEY THEMES             what `tools.publish_model --themes` reads

In the sheet, a judge writes a theme next to each item of whose tokens at least eight share one, and leaves the others
empty.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import GPT2LMHeadModel

from tools.model_cards import named_vectors, top_pieces


def make_sheet(model_folder: Path, tokenizer_folder: Path, sheet: Path, key: Path, *, seed: int = 0) -> None:
    """Write the top tokens of every item in mixed order, and the names in the same order into `key`."""
    model = GPT2LMHeadModel.from_pretrained(model_folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    counts = torch.tensor(json.loads((model_folder / "token_counts.json").read_text()))
    unembedding = model.lm_head.weight.detach()
    named = named_vectors(model)
    random.Random(seed).shuffle(named)
    items = [{"tokens": top_pieces(vector, unembedding, tokenizer, counts), "theme": ""} for _, vector in named]
    sheet.write_text(json.dumps(items, indent=1, ensure_ascii=False) + "\n")
    key.write_text(json.dumps([name for name, _ in named]) + "\n")


def themes(sheet: Path, key: Path) -> dict[str, str]:
    """The theme of each named item; items without one are left out."""
    items, names = json.loads(sheet.read_text()), json.loads(key.read_text())
    return {name: item["theme"] for name, item in zip(names, items, strict=True) if item["theme"]}


def main(arguments: list[str]) -> int:
    """Run one of the two commands."""
    match arguments:
        case ["sheet", model, tokenizer, sheet, key]:
            make_sheet(Path(model), Path(tokenizer), Path(sheet), Path(key))
        case ["themes", sheet, key, out]:
            Path(out).write_text(json.dumps(themes(Path(sheet), Path(key)), indent=1, ensure_ascii=False) + "\n")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

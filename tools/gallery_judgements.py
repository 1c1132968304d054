"""Blind judgements of the gallery: a sheet without names for a person, and the precision of the first 50 from it.

python -m tools.gallery_judgements sheet FILE     write wren's first 50 memories, 30 others and 20 random vectors
python -m tools.gallery_judgements judge FILE     show each item that has no judgement, store the answers
python -m tools.gallery_judgements score FILE     precision of the first 50, and of the others
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import torch

import unembed
from unembed.gallery import Gallery
from unembed.lens import read
from unembed.memories.norm_overlap import vectors_like
from unembed.memories.values import written_values
from unembed.models.shipped_models import shipped_folder
from unembed.names import memory_name

FIRST, OTHERS, RANDOM = 50, 30, 20
TOKENS, TRIGGERS, CONTEXT = 10, 6, 8


def make_sheet(path: Path) -> None:
    """Write the items in mixed order; `kind` and `memory` are the key, which `judge` does not show."""
    lm = unembed.load()
    index = unembed.cached_index(lm)
    assert index is not None, "build the ready index first: make run"
    gallery = Gallery.load(shipped_folder("wren") / "memories.json")
    ranked = [(row.layer, row.index) for row in gallery]
    draw = random.Random(0)
    rest = [(n, i) for n in range(lm.n_layers) for i in range(lm.d_mlp or 0) if (n, i) not in set(ranked)]
    items = [("first", layer, i, _tokens(lm, lm.weights.W_out[layer][i])) for layer, i in ranked[:FIRST]]
    items += [("other", layer, i, _tokens(lm, lm.weights.W_out[layer][i])) for layer, i in draw.sample(rest, OTHERS)]
    for layer, i in draw.sample(rest, RANDOM):
        generator = torch.Generator().manual_seed(layer * 10_007 + i)
        vector = vectors_like(written_values(lm, layer), 1, generator)[0]
        items.append(("random", layer, i, _tokens(lm, vector)))
    draw.shuffle(items)
    rows = [
        {
            "kind": kind,
            "memory": memory_name(layer, i),
            "tokens": tokens,
            "triggers": [
                f"{row['prefix']}[{row['token']}]{row['next_token']}"
                for row in index.triggers(layer, i, TRIGGERS, context=CONTEXT).to_dict()["rows"]
            ],
            "tokens_share": None,
            "triggers_share": None,
        }
        for kind, layer, i, tokens in items
    ]
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def _tokens(lm: unembed.LanguageModel, vector: torch.Tensor) -> list[str]:
    ids = read(lm, vector[None], TOKENS, basis="raw", hidden=lm.unlisted).ids[0]
    return lm.token_strings(ids)


def judge(path: Path) -> None:
    """Show each item without its key and store two answers: do the tokens share a theme, the triggers a pattern?"""
    rows = json.loads(path.read_text())
    for number, row in enumerate(rows, start=1):
        if row["tokens_share"] is not None:
            continue
        print(f"\n{number} of {len(rows)}", " ".join(map(repr, row["tokens"])), *row["triggers"], sep="\n  ")
        for field, question in (
            ("tokens_share", "a theme in the tokens"),
            ("triggers_share", "a pattern in the texts"),
        ):
            row[field] = input(f"{question}? [y/n] ").strip().lower().startswith("y")
        path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def scores(path: Path) -> dict[str, dict[str, int]]:
    """By kind of item: how many there are, and how many have a theme, a pattern, both."""
    rows = json.loads(path.read_text())
    found: dict[str, dict[str, int]] = {}
    for kind in ("first", "other", "random"):
        of = [row for row in rows if row["kind"] == kind]
        found[kind] = {
            "items": len(of),
            "theme": sum(row["tokens_share"] for row in of),
            "pattern": sum(row["triggers_share"] for row in of),
            "both": sum(row["tokens_share"] and row["triggers_share"] for row in of),
        }
    return found


def main() -> None:
    """Run one of the three steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("sheet", "judge", "score"))
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    if given.step == "sheet":
        make_sheet(given.file)
    elif given.step == "judge":
        judge(given.file)
    else:
        print(json.dumps(scores(given.file), indent=1))


if __name__ == "__main__":
    main()

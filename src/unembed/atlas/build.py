"""Build an atlas in a folder, layer by layer; after an interruption, the same call continues the build.

| file | contents |
|---|---|
| `memories.parquet` | one row for each memory (FFN neuron) and sign: `lines.SCHEMA` |
| `heads.parquet` | one row for each head: `heads.HEAD_COLUMNS` |
| `card.json` | the card as JSON: counts, test scores, examples and provenance |
| `README.md`, `index.html` | the card as text, for people |
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from jaxtyping import Int
from torch import Tensor

from unembed.atlas.card import Card
from unembed.atlas.controls import CONTROLS, FALSE, QUANTILE
from unembed.atlas.heads import head_columns
from unembed.atlas.layer import (
    DESCRIBED_HITS,
    DESCRIBED_RATIO,
    LEAST,
    LEAST_HITS,
    LEAST_RATIO,
    AtlasSource,
    LayerDescriber,
)
from unembed.atlas.lines import Line, read_lines, write_lines, write_table
from unembed.atlas.named_words import LEAST_NAMED, RISE_MOST
from unembed.atlas.page import markdown, page_of
from unembed.document.intervals import Measured
from unembed.errors import InvalidInput, reading_fault
from unembed.models.decoder import Decoder
from unembed.results import Provenance, make_folder, write_whole

MEMORIES, HEADS, CARD = "memories.parquet", "heads.parquet", "card.json"
_PARTS, _PLAN = ".building", "plan.json"

Progress = Callable[[str, int, int], None]


def build_atlas(
    lm: Decoder,
    source: AtlasSource,
    folder: Path,
    passages: Sequence[Int[Tensor, " pos"]],
    provenance: Provenance,
    *,
    layers: Sequence[int] | None = None,
    per_layer: int | None = None,
    seed: int = 0,
    progress: Progress = lambda _what, _done, _total: None,
) -> Card:
    """Describe and test the memories of a model, and write the atlas.

    Args:
        source: the text of an index, and the positions at which each memory fires.
        folder: a new or empty folder, or one where a build of the same atlas was interrupted.
        passages: token sequences; value vectors are added to the residual stream at the last token of each.
        provenance: the provenance of the index.
        layers: the layers to describe; by default all layers that have memories.
        per_layer: number of memories to draw at random from each layer; by default all are described.
        seed: the seed of all random choices.
        progress: called with the name of a step, the amount done, and the total.

    Raises:
        InvalidInput: the folder contains another atlas or other files, or the text has too few documents.
    """
    sizes = source.starts[1:] - source.starts[:-1]
    chosen = [n for n in (range(len(sizes)) if layers is None else sorted({lm.layer(n) for n in layers})) if sizes[n]]
    notes: dict[str, Any] = {
        "tokens": len(source.text),
        "firings": max(at.shape[1] for at in source.positions.values()),
        "layers": chosen,
        "per_layer": per_layer,
        "passages": len(passages),
        "least_accuracy": LEAST,
        "least_hits": LEAST_HITS,
        "least_ratio": LEAST_RATIO,
        "described_hits": DESCRIBED_HITS,
        "described_ratio": DESCRIBED_RATIO,
        "rise_most": RISE_MOST,
        "least_named": LEAST_NAMED,
        "controls": CONTROLS,
        "false_share": FALSE,
        "control_quantile": QUANTILE,
    }
    about = lm.provenance(corpus=provenance.corpus, seed=seed, notes={**provenance.notes, **notes})
    parts = folder / _PARTS
    _continue(folder, {"model": about.model, "corpus": about.corpus, "seed": seed, **notes})
    describer = None
    lines: list[Line] = []
    for done, layer in enumerate(chosen):
        path = parts / f"{layer}.parquet"
        if not path.exists():
            describer = describer or LayerDescriber(lm, source, passages, per_layer=per_layer, seed=seed)

            def report(part: int, of: int, done: int = done) -> None:
                progress("describing memories", 100 * done + 100 * part // max(1, of), 100 * len(chosen))

            write_lines(path, describer.lines(layer, report))
        lines += read_lines(path)
    progress("describing memories", 100 * len(chosen), 100 * len(chosen))
    heads = parts / HEADS
    if not heads.exists():
        progress("scoring heads", 0, 1)
        write_table(heads, pa.table(head_columns(lm, seed)))
    card = Card.of(lines, about, notes, seed)
    write_lines(folder / MEMORIES, lines)
    shutil.copyfile(heads, folder / HEADS)
    answer = card.answer()
    write_whole(folder / "README.md", markdown(answer))
    write_whole(folder / "index.html", page_of(answer))
    write_whole(folder / CARD, json.dumps(card.to_dict(), ensure_ascii=False, indent=1) + "\n")
    shutil.rmtree(parts, ignore_errors=True)
    return card


def _continue(folder: Path, plan: dict[str, Any]) -> None:
    """Start a build in a new or empty folder, or accept an interrupted build with the same settings.

    Raises:
        InvalidInput: the interrupted build had other settings, or the folder contains other files.
    """
    stored = folder / _PARTS / _PLAN
    if stored.exists():
        if json.loads(stored.read_text(encoding="utf-8")) != json.loads(json.dumps(plan)):
            raise InvalidInput(
                f"cannot build an atlas in {folder}",
                why="it contains an interrupted build with other settings",
                instead="Give another folder, or remove this one",
            )
        return
    if folder.exists() and any(folder.iterdir()):
        raise InvalidInput(
            f"cannot build an atlas in {folder}",
            why="it is not empty",
            instead="Give another folder, or remove this one",
        )
    make_folder(folder / _PARTS)
    write_whole(stored, json.dumps(plan, indent=1) + "\n")


def open_card(folder: Path) -> Card:
    """Read the card of an atlas from the atlas's folder.

    Raises:
        InvalidInput: the folder contains no card, or the card is damaged.
    """
    path = folder / CARD
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        examples = tuple(Line.from_dict(row) for row in stored["examples"])
        rest: dict[str, Any] = {
            name: stored[name]
            for name in ("memories", "described", "of_verdict", "of_one_class", "drawn", "by_layer", "notes")
        }
        for name in ("passes", "random", "scores"):
            rest[name] = {test: Measured(**one) for test, one in stored[name].items()}
        return Card(**rest, examples=examples, provenance=Provenance.from_dict(stored["provenance"]))
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise InvalidInput(
            f"no atlas in {folder}",
            why=f"{CARD} cannot be read: {reading_fault(fault)}",
            instead="Build one: unembed atlas build",
        ) from fault

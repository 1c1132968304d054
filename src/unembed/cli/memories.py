"""`unembed memories`: the gallery, memories ranked by evidence."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unembed.cli import options
from unembed.cli.option_groups import Opening, Output, grouped

if TYPE_CHECKING:
    from unembed.results import Table


@grouped
def memories(
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="Memories to show, best first.")] = 20,
    layer: Annotated[list[int] | None, typer.Option("--layer", "-l", help="Only this layer; repeatable.")] = None,
    index: Annotated[
        Path | None,
        typer.Option(
            "--index", metavar="DIR", help="An index of the model; default: its ready index.", show_default=False
        ),
    ] = None,
    show_unlearned: options.ShowUnlearned = False,
    opening: Opening = Opening(),
    seed: options.Seed = None,
    output: Output = Output(),
) -> None:
    """Rank memories (FFN neurons) by the evidence that they do something a person can name, and describe them.

    Five ingredients: coherence and concept of the promoted tokens, pattern of the triggers, agreement of promoted
    tokens with what follows the triggers, and the effect of removing the memory there. The score is the mean size of
    those with a p-value of at most 0.01. Without an index only the concept can be judged.
    """
    import unembed
    from unembed.cli.stored_index import index_for

    lm = opening.open(seed)
    known = index_for(opening, lm, index)
    settings: dict[str, Any] = {
        "layers": layer or None,
        "show_unlearned": show_unlearned,
        "seed": seed or 0,
        "progress": _progress,
    }
    if known is None:
        print(
            f"no index of {lm.name}: only concepts are judged, from the weights alone. For triggers, agreement and "
            f"effects build one: unembed index build --model {shlex.quote(opening.model)}",
            file=sys.stderr,
        )
        gallery = unembed.rank_memories(lm, None, top, **settings)
    else:
        gallery = known.memories(top, **settings)
    if output.as_json:
        sys.stdout.write(json.dumps(gallery.to_dict(), ensure_ascii=False) + "\n")
        return
    table = gallery.to_table()
    output.deliver(_for_terminal(table) if output.for_terminal else table)


def _for_terminal(table: Table) -> Table:
    """The columns that fit the terminal; --json, --csv and --html have all."""
    columns = {name: table.columns[name] for name in ("memory", "score", "description")}
    columns["score"] = [f"{score:.2f}" for score in columns["score"]]
    for name in ("coherence", "concept", "triggers", "agreement", "effect"):
        sizes, p = table.columns[name], table.columns[f"{name}_p"]
        columns[name] = [
            "" if size is None else f"{size:.2f}{'' if q <= 0.01 else '?'}" for size, q in zip(sizes, p, strict=True)
        ]
    return type(table)(table.title, columns, table.provenance)


def _progress(what: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{what}: {done:,} of {total:,}   ", end="\n" if done >= total else "", file=sys.stderr)

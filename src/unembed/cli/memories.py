"""`unembed memories`: the gallery, memories ranked by evidence."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unembed.cli import options

if TYPE_CHECKING:
    from unembed.results import Table


def memories(
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="Memories to show, best first.")] = 20,
    layer: Annotated[list[int] | None, typer.Option("--layer", "-l", help="Only this layer; repeatable.")] = None,
    index: Annotated[
        Path | None,
        typer.Option(
            "--index", metavar="DIR", help="An index of the model; by default one that is ready.", show_default=False
        ),
    ] = None,
    show_unlearned: options.ShowUnlearned = False,
    model: options.Model = "wren",
    revision: options.Revision = None,
    tokenizer: options.Tokenizer = None,
    offline: options.Offline = False,
    dtype: options.DType = None,
    device: options.Device = None,
    seed: options.Seed = None,
    as_json: options.Json = False,
    csv: options.Csv = False,
    plain: options.Plain = False,
    html: options.Html = None,
) -> None:
    """Rank memories (FFN neurons) by the evidence that they do something a person can name, and describe them.

    Five ingredients: coherence and concept of the promoted tokens, pattern of the triggers, agreement of promoted
    tokens with what follows the triggers, and the effect of removing the memory there. The score is the mean size of
    those with a p-value of at most 0.01. Without an index only the concept can be judged.
    """
    options.check_output(html, json=as_json, csv=csv, plain=plain)
    import unembed
    from unembed.cli.model_loading import opened
    from unembed.cli.output import deliver_table

    lm = opened(model, tokenizer=tokenizer, revision=revision, offline=offline, dtype=dtype, device=device, seed=seed)
    known = unembed.Index.open(index, lm) if index is not None else unembed.cached_index(lm)
    settings: dict[str, Any] = {
        "layers": layer or None,
        "show_unlearned": show_unlearned,
        "seed": seed or 0,
        "progress": _progress,
    }
    if known is None:
        print(
            f"no index of {lm.name}: only concepts are judged, from the weights alone. For triggers, agreement and "
            f"effects build one: unembed index build --model {model} --out DIR, then unembed memories --index DIR",
            file=sys.stderr,
        )
        gallery = unembed.rank_memories(lm, None, top, **settings)
    else:
        gallery = known.memories(top, **settings)
    if as_json:
        sys.stdout.write(json.dumps(gallery.to_dict(), ensure_ascii=False) + "\n")
        return
    table = gallery.to_table()
    deliver_table(
        table if html is not None or csv else _for_terminal(table), as_json=False, csv=csv, plain=plain, html=html
    )


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

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
    from unembed import LanguageModel
    from unembed.gallery import Gallery
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
    by_score: Annotated[
        bool, typer.Option("--by-score", help="List by score alone, however many have the same concept.")
    ] = False,
    recompute: Annotated[bool, typer.Option("--recompute", help="Rank anew, even where a ranking is saved.")] = False,
    show_unlearned: options.ShowUnlearned = False,
    opening: Opening = Opening(),
    seed: options.Seed = None,
    output: Output = Output(),
) -> None:
    """Rank memories (FFN neurons) by the evidence that they do something a person can name, and describe them.

    Five ingredients: coherence and concept of the promoted tokens, pattern of the triggers, agreement of promoted
    tokens with what follows the triggers, and the effect of removing the memory there. The score is the mean size of
    those with a p-value of at most 0.01. Without an index only the concept can be judged.

    A saved ranking is shown where there is one: with the index, or with the embedded model. --layer, --seed,
    --show-unlearned and --recompute rank anew. The terminal lists at most three of each concept; --json, --csv and
    --html are in order of score.
    """
    from unembed.gallery import OF_A_CONCEPT

    anew = recompute or bool(layer) or show_unlearned or seed is not None or not opening.is_default
    gallery, lm = (None, None) if anew else _saved(opening, index, top)
    if gallery is None:
        gallery = _ranked(
            opening,
            lm or opening.open(seed),
            index,
            top,
            layers=layer or None,
            show_unlearned=show_unlearned,
            seed=seed or 0,
            recompute=recompute,
        )
    if output.as_json:
        sys.stdout.write(json.dumps(gallery.first(top).to_dict(), ensure_ascii=False) + "\n")
    elif output.for_terminal:
        listed = gallery if by_score else gallery.varied()
        output.deliver(_for_terminal(listed.first(top).to_table()))
        if len(listed) < len(gallery):
            print(
                f"at most {OF_A_CONCEPT} of each concept are listed; --by-score lists by score alone", file=sys.stderr
            )
    else:
        output.deliver(gallery.first(top).to_table())


def _saved(opening: Opening, folder: Path | None, top: int) -> tuple[Gallery | None, LanguageModel | None]:
    """The ranking saved with the index, or with the embedded model, and the model if it had to be opened for that.

    No ranking where the saved one is shorter than `top`, damaged, or (with an index given) over another corpus.
    """
    import unembed
    from unembed.cli.stored_index import stored_index
    from unembed.errors import InvalidInput
    from unembed.gallery import FILE, memory_gallery, saved_gallery

    lm = None
    try:
        if stored := stored_index(opening, folder):
            index, known = stored
            found = saved_gallery(index.provenance, lambda: known.sampled, index.path)
        else:
            lm = opening.open()
            index = unembed.cached_index(lm) if folder is None else unembed.Index.open(folder, lm)
            found = memory_gallery(lm, None if index is None else index.path)
    except InvalidInput:  # the file is damaged
        return None, lm
    is_of_index = folder is None or (folder / FILE).exists()
    if found is None or len(found) < top or not is_of_index:
        return None, lm
    about = found.provenance
    print(
        f"saved ranking of {about.model} over {about.notes.get('corpus_name', about.corpus)}, made by unembed "
        f"{about.version}; --recompute ranks anew",
        file=sys.stderr,
    )
    return found, lm


def _ranked(
    opening: Opening, lm: LanguageModel, folder: Path | None, top: int, *, recompute: bool, **settings: Any
) -> Gallery:
    """A new ranking: over an index, else by the weights alone, with a line on stderr."""
    import unembed
    from unembed.cli.stored_index import index_for
    from unembed.gallery import SAVED

    if (known := index_for(opening, lm, folder)) is not None:
        # A list that shows different memories is chosen from as many as are saved.
        pool = max(top, SAVED) if settings["layers"] is None else top
        return known.memories(pool, recompute=recompute, progress=_progress, **settings)
    print(
        f"no index of {lm.name}: only concepts are judged, from the weights alone. For triggers, agreement and "
        f"effects build one: unembed index build --model {shlex.quote(opening.model)}",
        file=sys.stderr,
    )
    return unembed.rank_memories(lm, None, top, progress=_progress, **settings)


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


def _progress(what: str, done: int, total: int | None) -> None:
    if sys.stderr.isatty():
        amount = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        is_last = total is not None and done >= total
        print(f"\r{what}: {amount}   ", end="\n" if is_last else "", file=sys.stderr)

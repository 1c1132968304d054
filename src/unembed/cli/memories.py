"""`unembed memories`: the gallery, in which memories are ranked by evidence."""

from __future__ import annotations

import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unembed.cli.command import command
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Opening, Output
from unembed.cli.output import terminal_width
from unembed.options import AnySeed, IndexFolder, Layers, Option, ShowUnlearned, Top

if TYPE_CHECKING:
    from unembed import LanguageModel
    from unembed.gallery import Gallery
    from unembed.results import Table

WITH_INGREDIENTS = 110
"""Narrowest terminal, in columns, that has the ingredients next to the descriptions."""
LAYER_POOL = 50
"""Memories that are ranked where layers are given."""


@command("memories", "unembed memories --top 20 --html gallery.html")
def memories(
    top: Top = 20,
    layers: Layers = None,
    index: IndexFolder = None,
    by_score: Annotated[bool, Option("List by score alone, however many are alike.")] = False,
    recompute: Annotated[bool, Option("Rank anew, even where a ranking is saved.")] = False,
    show_unlearned: ShowUnlearned = False,
    opening: Opening = Opening(),
    seed: AnySeed = None,
    output: Output = Output(),
) -> None:
    """Rank memories (FFN neurons) by the evidence that they do something a person can name, and describe them.

    Five ingredients: coherence and concept of the promoted tokens, pattern of the triggers, agreement of promoted
    tokens with what follows the triggers, and the effect of removing the memory there. The score is the mean size of
    those with a p-value of at most 0.01. Without an index only the concept can be judged.

    A saved ranking is shown where there is one: with the index, or with the embedded model. --layers, --seed,
    --show-unlearned and --recompute rank anew. Different ones are listed first: best first, none with the concept, the
    trigger pattern or three of the top tokens of one above it; then the others. --by-score lists by score alone. All
    forms of output have the same list; a terminal of fewer than 110 columns leaves out the five ingredients.

    Caution: The score ranks evidence, not importance, and a description is of the strongest contexts: most of where a
    memory fires lies outside them.
    """
    anew = recompute or bool(layers) or show_unlearned or seed is not None or not opening.is_default
    gallery, lm, damaged = (None, None, False) if anew else _saved(opening, index, top)
    if gallery is None:
        gallery = _ranked(
            opening,
            lm or opening.open(seed),
            index,
            top,
            layers=layers or None,
            show_unlearned=show_unlearned,
            seed=seed or 0,
            recompute=recompute or damaged,
        )
    listed = (gallery if by_score else gallery.varied()).first(top)
    if output.as_json:
        sys.stdout.write(json.dumps(listed.to_dict(), ensure_ascii=False) + "\n")
    elif output.for_terminal:
        is_wide = terminal_width() >= WITH_INGREDIENTS
        output.deliver(_for_terminal(listed.to_table(), ingredients=is_wide))
        if not is_wide:
            print(
                f"the ingredients of the score are left out: they need {WITH_INGREDIENTS} columns; --csv has them",
                file=sys.stderr,
            )
        print_explorer_link(opening, "atlas", index=index)
    else:
        output.deliver(listed.to_table())


def _saved(opening: Opening, folder: Path | None, top: int) -> tuple[Gallery | None, LanguageModel | None, bool]:
    """The ranking saved with the index, or with the embedded model; the model if it had to be opened for that.

    The last value is whether the saved one is damaged, which a line on stderr says. No ranking then, nor where it is
    shorter than `top` or (with an index given) over another corpus.
    """
    import unembed
    from unembed.cli.stored_index import stored_index
    from unembed.errors import InvalidInput
    from unembed.gallery import FILE, memory_gallery, saved_gallery
    from unembed.results import visible

    lm = None
    if stored := stored_index(opening, folder):
        index, known = stored
        place = partial(saved_gallery, index.provenance, lambda: known.sampled, index.path)
    else:
        lm = opening.open()
        index = unembed.cached_index(lm) if folder is None else unembed.Index.open(folder, lm)
        place = partial(memory_gallery, lm, None if index is None else index.path)
    try:
        found = place()
    except InvalidInput as fault:
        print(visible(f"{fault.what} cannot be used: {fault.why}. Ranking anew", prose=True), file=sys.stderr)
        return None, lm, True
    is_of_index = folder is None or (folder / FILE).exists()
    if found is None or len(found) < top or not is_of_index:
        return None, lm, False
    about = found.provenance
    print(
        f"saved ranking of {about.model} over {about.notes.get('corpus_name', about.corpus)}, made by unembed "
        f"{about.version}; --recompute ranks anew",
        file=sys.stderr,
    )
    return found, lm, False


def _ranked(
    opening: Opening, lm: LanguageModel, folder: Path | None, top: int, *, recompute: bool, **settings: Any
) -> Gallery:
    """Make a new ranking over an index; without one, by the weights alone, which a line on stderr says."""
    import unembed
    from unembed.cli.stored_index import index_for
    from unembed.gallery import SAVED

    # A layer that does not exist is refused before the program announces that it ranks memories.
    for layer in settings["layers"] or ():
        lm.layer(layer)
    if not lm.memory_layers:
        lm.feed_forward(0)

    if (known := index_for(opening, lm, folder)) is not None:
        # To list memories that differ, more are ranked than are listed; the effect is measured for each of them.
        pool = max(top, SAVED if settings["layers"] is None else LAYER_POOL)
        return known.memories(pool, recompute=recompute, progress=_progress, **settings)
    print(
        f"no index of {lm.name}: only concepts are judged, from the weights alone. For triggers, agreement and "
        f"effects build one: unembed index build --model {shlex.quote(opening.model)}",
        file=sys.stderr,
    )
    return unembed.rank_memories(lm, None, max(top, SAVED), progress=_progress, **settings)


def _for_terminal(table: Table, *, ingredients: bool) -> Table:
    """Select the columns that a terminal shows; --json, --csv and --html have all."""
    from unembed.gallery import INGREDIENTS

    columns = {name: table.columns[name] for name in ("memory", "score", "description")}
    columns["score"] = [f"{score:.2f}" for score in columns["score"]]
    for name in INGREDIENTS if ingredients else ():
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

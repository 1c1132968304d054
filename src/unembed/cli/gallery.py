"""Draw the gallery, a ranking of memories (FFN neurons), in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from unembed.gallery import INGREDIENTS, Gallery
from unembed.results import Table, decimals_of, format_cell

WITH_INGREDIENTS = 110
"""Minimum width of the terminal, in characters, to show the terms of the score (`INGREDIENTS`) as columns."""
_LEFT_OUT = f"the terms of the score are left out: they need {WITH_INGREDIENTS} columns; --csv has them"

_TRUTH = (
    "truth: correlation, over the vocabulary, of a value vector's token scores with what adding the value vector does "
    "to the predictions; a memory whose truth is below its control (--csv) is not described"
)


def draw_gallery(gallery: Gallery, width: int, *, plain: bool = False) -> RenderableType:
    """Draw name, score, truth and description of each memory; in a wide terminal also the terms of its score.

    A memory's truth measures whether adding its value vector promotes the tokens that the vector should promote (see
    `_TRUTH`). A `?` after a term means that the term is not significant (p > 0.01).
    """
    table = gallery.to_table()
    columns = {name: table.columns[name] for name in ("memory", "score", "description")}
    places = decimals_of(columns["score"])
    columns["score"] = [format_cell(score, places) for score in columns["score"]]
    measured = "truth" in table.columns
    if measured:
        columns["truth"] = ["" if r is None else format_cell(r) for r in table.columns["truth"]]
        columns["description"] = columns.pop("description")  # moved to the end, because it is the widest
    for name in INGREDIENTS if width >= WITH_INGREDIENTS else ():
        sizes, p = table.columns[name], table.columns[f"{name}_p"]
        columns[name] = [
            "" if size is None else f"{format_cell(size)}{'' if q <= 0.01 else '?'}"
            for size, q in zip(sizes, p, strict=True)
        ]
    shown = Table(table.title, columns, table.provenance)
    below = [*([_TRUTH] if measured else []), *([] if width >= WITH_INGREDIENTS else [_LEFT_OUT])]
    return Group(shown, *(Text(line, style="dim") for line in below)) if below else shown

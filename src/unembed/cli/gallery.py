"""Draw the gallery, a ranking of memories (FFN neurons), in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from unembed.gallery import INGREDIENTS, Gallery
from unembed.results import Table

WITH_INGREDIENTS = 110
"""Minimum width of the terminal, in characters, to show the terms of the score (`INGREDIENTS`) as columns."""
_LEFT_OUT = f"the ingredients of the score are left out: they need {WITH_INGREDIENTS} columns; --csv has them"


def draw_gallery(gallery: Gallery, width: int, *, plain: bool = False) -> RenderableType:
    """Draw name, score and description of each memory; in a wide terminal also the terms of its score.

    A `?` after a term means that it is not significant (p > 0.01).
    """
    table = gallery.to_table()
    columns = {name: table.columns[name] for name in ("memory", "score", "description")}
    columns["score"] = [f"{score:.2f}" for score in columns["score"]]
    for name in INGREDIENTS if width >= WITH_INGREDIENTS else ():
        sizes, p = table.columns[name], table.columns[f"{name}_p"]
        columns[name] = [
            "" if size is None else f"{size:.2f}{'' if q <= 0.01 else '?'}" for size, q in zip(sizes, p, strict=True)
        ]
    shown = Table(table.title, columns, table.provenance)
    return shown if width >= WITH_INGREDIENTS else Group(shown, Text(_LEFT_OUT, style="dim"))

"""The gallery of memories (FFN neurons) for a terminal: as many columns as it has room for."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from unembed.gallery import INGREDIENTS, Gallery
from unembed.results import Table

WITH_INGREDIENTS = 110
"""Narrowest terminal, in columns, that has the ingredients next to the descriptions."""
_LEFT_OUT = f"the ingredients of the score are left out: they need {WITH_INGREDIENTS} columns; --csv has them"


def draw_gallery(gallery: Gallery, width: int, *, plain: bool = False) -> RenderableType:
    """Name, score and description of each; in a wide terminal the ingredients, with `?` where not significant."""
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

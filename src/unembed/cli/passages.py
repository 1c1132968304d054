"""Draw triggers (text positions where a memory, an FFN neuron, fires most) as lines of text in a terminal."""

from __future__ import annotations

from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table as Columns
from rich.text import Text

from unembed.cli.bars import PROMOTES, Scale
from unembed.results import Table, format_cell, format_signed, visible, visible_rich, whole_character

_MARK = "bold"


def draw_passages(found: Table, width: int, *, plain: bool, signature: bool = True) -> RenderableType:
    """Draw one line for each trigger: the coefficient, a bar, the text up to the marked token, and the next token.

    Args:
        found: a table with one row for each trigger.
        signature: add a last line with the provenance: the model, the corpus and the version.
    """
    rows = list(found.rows())
    parts: list[Any] = [Text(found.title, style="bold")]
    if not rows:
        return Group(*parts, Text("none", style="dim"))
    named = "layer" in rows[0]
    cells = 0 if plain else 8 if width < 100 else 12
    scale = Scale.of([abs(row["coefficient"]) for row in rows], cells) if cells else None
    has_strength = "strength" in rows[0]
    room = max(
        20, width - 9 - (cells + 2 if cells else 0) - (11 if named else 0) - (10 if has_strength else 0) - 16 - 4
    )
    table = Columns(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    if named:
        table.add_column("memory", no_wrap=True)
    if has_strength:
        table.add_column("strength", justify="right", no_wrap=True)
    table.add_column("m", justify="right", no_wrap=True)
    if scale is not None:
        table.add_column("", no_wrap=True)
    table.add_column("trigger", no_wrap=True, justify="right")
    table.add_column("next", no_wrap=True)
    for row in rows:
        line: list[Any] = [Text(row.get("memory") or f"L{row['layer']}M{row['index']}")] if named else []
        if has_strength:
            line.append(Text(format_cell(row["strength"])))
        line.append(format_signed(row["coefficient"]))
        if scale is not None:
            line.append(Text(scale.right(abs(row["coefficient"])), style=PROMOTES))
        following = row["next_token"]
        prefix, token = whole_character(row["prefix"], row["token"], following or "")
        line.append(passage(prefix, token, room, plain=plain))
        if following is not None:
            _, following = whole_character(row["prefix"] + row["token"], following)
        line.append(Text("end", style="dim") if following is None else _short(following, 14))
        table.add_row(*line)
    last = [visible_rich(found.provenance.line(), prose=True, style="dim")] if signature else []
    return Group(*parts, table, *last)


def passage(prefix: str, token: str, room: int, *, plain: bool) -> Text:
    """Return the end of a prefix, followed by the marked token; both together fit `room` cells."""
    # The brackets mark the token in terminals that do not show bold text.
    marked = Text("[", style="dim").append_text(_short(token, max(4, room // 2), "" if plain else _MARK))
    marked.append("]", style="dim")
    left = room - cell_len(marked.plain)
    # A long prefix is shortened first, because marking its invisible characters takes time.
    text = visible(prefix[-4 * max(left, 1) :].replace("\n", " "), prose=True)
    cut = len(prefix) > 4 * left
    while cell_len(text) > left - cut:
        text, cut = text[1:], True
    return Text("…" if cut else "", style="dim").append(text, style="").append_text(marked)


def _short(token: str, cells: int, style: str = "") -> Text:
    shown = visible_rich(token, style=style)
    shown.truncate(cells, overflow="ellipsis")
    return shown

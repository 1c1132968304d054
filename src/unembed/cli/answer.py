"""Write the result of an analysis as JSON, as CSV, as an HTML page, or as tables in the terminal."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from unembed.cli.drawings import drawing_of
from unembed.results import format_cell, format_probability

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from unembed.analyses import Listing
    from unembed.cli.option_groups import Output
    from unembed.document import Answer, Exhibit, Figure, Report

_PLOT_ROWS = 10
"""Maximum number of rows of a plot above its horizontal axis, and below it."""
_POINTS = "·•●"
"""Symbols for a character cell of a plot that contains one point, two points, and more."""


def deliver(listing: Listing, sizes: Mapping[str, Any], found: Any, output: Output) -> Answer:
    """Write the result of an analysis in the requested formats; in the terminal if no format was requested.

    Args:
        sizes: sizes of the model to show on a page, such as its number of layers.
        found: the result: an `Answer`, a `Table`, or an object with `to_table`.
    """
    from unembed.cli.output import show, write_json, write_page
    from unembed.document import Answer, Report, page
    from unembed.results import Table, visible

    if not isinstance(found, Answer):
        found = Answer.of_table(found if isinstance(found, Table) else found.to_table())
    group = listing.name.split()[0]
    facts = {"model": found.provenance.model, **sizes}
    report = Report(group, found.title, "", listing.source, found.provenance, found.sections, facts)
    by_hand = None if found.view is None else drawing_of(found.view)
    if by_hand is None and output.takes(report):
        return found
    if output.html is not None:
        made = None if by_hand is None else by_hand.page
        write_page(output.html, page(report, _drawing(found)) if made is None else made())
    if output.as_json:
        write_json(found.to_dict(f"unembed.{group}/1"))
    elif output.csv:
        table = found.data if isinstance(found.data, Table) else report[found.main or next(iter(report.exhibits))]
        sys.stdout.write(table.to_csv())
    elif output.html is None or output.plain:
        with_maps = found.data is not None
        draw = partial(drawn, report, with_maps=with_maps) if by_hand is None else by_hand.draw
        show(lambda width: draw(width, plain=output.plain), plain=output.plain)
    for remark in found.remarks:
        print(visible(remark, prose=True), file=sys.stderr)
    return found


def _drawing(found: Answer) -> str:
    """Return the drawing of an answer as HTML; an empty text if it has none."""
    if found.drawing is None:
        return ""
    from unembed.notebook import Card

    return Card(dict(found.drawing()), "").on_page()


def drawn(report: Report, width: int, *, plain: bool, with_maps: bool, sentences_first: bool = False) -> RenderableType:
    """Draw a report for a terminal: its text, its tables, and those of its figures that a terminal can show.

    Args:
        with_maps: draw heat maps.
        sentences_first: draw the text of a section above its tables, and no figures; for a client that gets the
            figures as pictures.
    """
    from rich.console import Group
    from rich.text import Text

    from unembed.results import visible_rich

    parts: list[Any] = []
    for section in report.sections:
        texts = [_paragraph(text) for text in section.text]
        parts += texts if sentences_first else []
        for figure in section.figures if with_maps and not sentences_first else ():
            if figure.kind == "heat":
                parts += [Text(figure.title, style="bold"), _heat(figure, report, width), Text()]
        # Long tables, which an HTML page shows collapsed (every pair, every eigenvalue), are left out, unless the
        # section has nothing else that a terminal can show.
        scatters = [figure for figure in section.figures if figure.kind == "scatter"]
        shown = [one for one in section.exhibits if not one.folded] or ([] if scatters else section.exhibits)
        for exhibit in shown:
            parts += _table(exhibit, width, plain)
        if not sentences_first:
            for figure in scatters:
                parts += [Text(figure.title, style="bold"), _scatter(figure, report, width), Text()]
            parts += texts
    return Group(*parts, visible_rich(report.provenance.line(), prose=True, style="dim"))


def with_sentences_first(report: Report, width: int) -> RenderableType:
    """Draw a report for a client that gets its figures as pictures: the title, then text above tables."""
    from rich.console import Group

    from unembed.results import visible_rich

    named = any(one.table.title == report.title for section in report.sections for one in section.exhibits)
    title = [] if named else [visible_rich(report.title, prose=True)]
    return Group(*title, drawn(report, width, plain=True, with_maps=False, sentences_first=True))


def _paragraph(text: str) -> RenderableType:
    from rich.padding import Padding

    from unembed.results import as_written, visible_rich

    return Padding(visible_rich(as_written(text.replace("`", "")), prose=True), (0, 0, 1, 0), expand=False)


def _table(exhibit: Exhibit, width: int, plain: bool) -> list[RenderableType]:
    """Draw the first rows of a table, with the columns meant for a terminal, then state how many rows are left out."""
    from rich.text import Text

    from unembed.results import Table, visible_rich

    whole = exhibit.table
    note = [visible_rich(exhibit.note, prose=True)] if exhibit.note else []
    if {"prefix", "token", "next_token"} <= set(whole.column_names):
        from unembed.cli.passages import draw_passages

        return [*note, draw_passages(whole, width, plain=plain, signature=False)]
    ends = {f"{name}{end}" for name in whole.column_names for end in ("_low", "_high")}
    names = exhibit.brief or [name for name in whole.column_names if name not in ends]
    brief = Table(whole.title, {name: whole[name] for name in names}, whole.provenance)[: exhibit.listed]
    hidden = len(whole) - exhibit.listed
    more = [Text(f"{hidden:,} more rows (--csv, --json or --html)", style="dim")] if hidden > 0 else []
    shares = dict.fromkeys(exhibit.percent, _share)
    return [*note, *brief.drawn(width, shares, max(40, exhibit.listed), exhibit.unbroken), *more]


def _share(value: Any) -> str:
    return "" if value is None else "0%" if not value else format_probability(max(float(value), 0.0))


def _scatter(figure: Figure, report: Report, width: int) -> Text:
    """Draw a scatter plot with characters; both axes have the same scale (a cell is about twice as high as wide)."""
    from rich.text import Text

    columns = report.exhibits[figure.table].table.columns
    pairs = zip(columns[figure.x], columns[figure.y[0]], strict=True)
    points = [(x, y) for x, y in pairs if x is not None and y is not None]
    if not points:
        return Text("not available", style="dim")
    largest = max((abs(number) for point in points for number in point), default=0.0) or 1.0
    half = min(_PLOT_ROWS, (width - 2) // 4)
    counts = Counter((round(x / largest * 2 * half), round(y / largest * half)) for x, y in points)
    lines: list[str] = []
    for row in range(half, -half - 1, -1):
        cells: list[str] = []
        for column in range(-2 * half, 2 * half + 1):
            axis = {(True, True): "┼", (True, False): "─", (False, True): "│"}.get((row == 0, column == 0), " ")
            found = counts[column, row]
            cells.append(_POINTS[min(found, len(_POINTS)) - 1] if found else axis)
        lines.append("".join(cells).rstrip())
    legend = f"{_POINTS[0]} one point, {_POINTS[1]} two, {_POINTS[2]} more"
    return Text("\n".join([*lines, f"to the right: {figure.x_label}; upwards: {figure.y_label}; {legend}"]))


def _heat(figure: Figure, report: Report, width: int) -> RenderableType:
    """Draw a heat map as numbers with shaded backgrounds; columns that do not fit continue in a block below."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from unembed.document import axis_of
    from unembed.results import visible

    columns = report.exhibits[figure.table].table.columns
    keys = zip(columns[figure.rows], columns[figure.x], strict=True)
    values = dict(zip(keys, columns[figure.y[0]], strict=True))
    down, across = axis_of(columns[figure.rows]), axis_of(columns[figure.x])
    largest = figure.y_range[1] if figure.y_range else max((abs(v) for v in values.values()), default=0.0) or 1.0
    names = {x: visible(str(x))[:10] for x in across}
    cell = max(5, max(map(len, names.values()), default=0))
    fit = max(1, (width - 7) // (cell + 1))
    blocks: list[Any] = []
    for start in range(0, len(across), fit):
        some = across[start : start + fit]
        block = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        block.add_column(figure.rows, justify="right", style="dim")
        for x in some:
            block.add_column(Text(names[x]), justify="right", width=cell, no_wrap=True)
        for y in down:
            block.add_row(str(y), *(_heat_cell(values.get((y, x)), largest) for x in some))
        blocks.append(block)
    return Group(*blocks)


def _heat_cell(value: float | None, largest: int | float) -> Text:
    from rich.text import Text

    if value is None:
        return Text("·", style="dim")
    strength = min(1.0, abs(value) / largest)
    if strength < 0.05:
        return Text(format_cell(value), style="dim")
    level = 60 + int(120 * strength)
    shade = f"rgb(30,{level},90)" if value > 0 else f"rgb({level},40,60)"
    return Text(format_cell(value), style=f"white on {shade}")

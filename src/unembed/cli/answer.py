"""What an analysis returned as JSON, CSV, a page, or tables on the terminal."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from unembed.cli.bars import OPPOSES, PROMOTES, Scale, decimals, percent, signed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from unembed.analyses import Listing
    from unembed.cli.option_groups import Output
    from unembed.document import Answer, Exhibit, Figure, Report
    from unembed.models.decoder import Decoder

_BAR = 8
_PLOT_ROWS = 10
"""Rows of a plot on either side of its horizontal axis, at most."""
_POINTS = "·•●"
"""One point, two, more."""
_STEM = re.compile(r"\b(\w{4,}(?=(?:ing|ous|ive|cate|values)\b)|\w{5,}(?=tion\b))")
"""The part of a word before its ending: a heading may break there when a table is wider than the terminal."""


def deliver(listing: Listing, lm: Decoder | None, answer: Any, output: Output) -> None:
    """Write what an analysis returned in the requested forms; the terminal's when none was."""
    from unembed.document import Answer
    from unembed.results import Table

    if isinstance(answer, Answer):
        _deliver_sections(listing, lm, answer, output)
        return
    table = answer if isinstance(answer, Table) else answer.to_table()
    if {"prefix", "token", "next_token"} <= set(table.column_names):
        from unembed.cli.index.view import deliver_passages

        deliver_passages(table, None, output)
    else:
        output.deliver(table)


def _deliver_sections(listing: Listing, lm: Decoder | None, answer: Answer, output: Output) -> None:
    from unembed.cli.output import show, write_page
    from unembed.document import Report, page
    from unembed.results import Table

    group = listing.name.split()[0]
    facts = {"model": answer.provenance.model}
    if lm is not None:
        facts |= {"layers": lm.n_layers, "heads a layer": lm.n_heads, "d_head": lm.d_head}
    report = Report(group, answer.title, "", listing.source, answer.provenance, answer.sections, facts)
    if output.html is not None:
        write_page(output.html, page(report))
    if output.as_json:
        view = answer.to_dict(f"unembed.{group}/1")
        sys.stdout.write(json.dumps(view, ensure_ascii=False, allow_nan=False) + "\n")
    elif output.csv:
        exhibit = report.exhibits[answer.main or next(iter(report.exhibits))]
        sys.stdout.write((answer.data if isinstance(answer.data, Table) else exhibit.table).to_csv())
    elif output.html is None or output.plain:
        draw = _drawn if answer.data is None else _tables
        show(lambda width: draw(report, width, output.plain), plain=output.plain)


def _tables(report: Report, width: int, plain: bool) -> RenderableType:
    """Tables in brief, each below the figures of its section; for answers whose data are not their tables."""
    from rich.console import Group
    from rich.text import Text

    from unembed.results import visible_rich

    parts: list[Any] = []
    for section in report.sections:
        for figure in section.figures:
            if figure.kind == "heat":
                parts += [Text(figure.title, style="bold"), _heat(figure, report, width), Text()]
        for exhibit in section.exhibits:
            if not exhibit.folded:
                parts += [*_brief(exhibit), Text()]
        parts += [visible_rich(text, prose=True) for text in section.text]
    return Group(*(parts if report.sections[-1].text else parts[:-1]))


def _brief(exhibit: Exhibit) -> list[RenderableType]:
    """The rows and columns of a table that a terminal shows, and how many rows follow."""
    from rich.text import Text

    from unembed.results import Table, visible_rich

    whole, columns = exhibit.table, {}
    for name in exhibit.brief or whole.column_names:
        cells = whole[name]
        columns[name] = [f"{cell:.1%}" for cell in cells] if name in exhibit.percent else cells
    hidden = len(whole) - exhibit.listed
    more = [Text(f"{hidden:,} more rows (--csv, --json or --html)", style="dim")] if hidden > 0 else []
    note = [visible_rich(exhibit.note, prose=True)] if exhibit.note else []
    return [Table(whole.title, columns, whole.provenance)[: exhibit.listed], *more, *note]


def _drawn(report: Report, width: int, plain: bool) -> RenderableType:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from unembed.document import as_written
    from unembed.results import visible_rich

    parts: list[Any] = []
    for section in report.sections:
        # Long tables behind a page's fold (every pair, every eigenvalue) are for pages and JSON, unless they are all
        # that the terminal could show of a section.
        drawn = any(not e.folded for e in section.exhibits) or any(f.kind == "scatter" for f in section.figures)
        for exhibit in section.exhibits:
            if not (drawn and exhibit.folded):
                parts += [Text(exhibit.table.title, style="bold"), _table(exhibit, width, plain), Text()]
        for figure in section.figures:
            if figure.kind == "scatter":
                parts += [Text(figure.title, style="bold"), _scatter(figure, report, width), Text()]
        for text in section.text:
            parts.append(
                Padding(visible_rich(as_written(text.replace("`", "")), prose=True), (0, 0, 1, 0), expand=False)
            )
    parts.append(Text(report.provenance.line(), style="dim"))
    return Group(*parts)


def _scatter(figure: Figure, report: Report, width: int) -> Text:
    """The points of a figure between its two axes, both of one scale: a cell is about twice as high as wide."""
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
    """A number for each cell, shaded by its size; as many blocks of columns under each other as the width needs."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from unembed.results import visible

    columns = report.exhibits[figure.table].table.columns
    keys = zip(columns[figure.rows], columns[figure.x], strict=True)
    values = dict(zip(keys, columns[figure.y[0]], strict=True))
    down, across = list(dict.fromkeys(columns[figure.rows])), list(dict.fromkeys(columns[figure.x]))
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
        return Text(f"{value:z.2f}", style="dim")
    level = 60 + int(120 * strength)
    shade = f"rgb(30,{level},90)" if value > 0 else f"rgb({level},40,60)"
    return Text(f"{value:z.2f}", style=f"white on {shade}")


def _table(exhibit: Exhibit, width: int, plain: bool) -> RenderableType:
    """A table with the columns that are shares as bars; intervals as plus-minus."""
    from rich.table import Table
    from rich.text import Text

    from unembed.results.column_widths import column_widths

    rows = list(exhibit.table.head(exhibit.listed).rows())
    names = [n for n in exhibit.brief or exhibit.table.column_names if not n.endswith(("_low", "_high"))]
    widest = 5 + sum(max(len(_word(n)), 6) + 2 for n in names)
    bars = not plain and widest + (_BAR + 1) * len(exhibit.percent) <= width
    headings, gap = {n: _word(n) for n in names}, 2
    places = {n: _places(row[n] for row in rows) for n in names}
    cells = [{n: _cell(n, row, exhibit, False, places[n]).plain for n in names} for row in rows]
    if _least(headings, cells, gap) > width:
        headings = {n: _STEM.sub(r"\1- ", _word(n)) for n in names}
        gap = 2 if _least(headings, cells, 2) <= width else 1
    left_out: list[str] = []
    while _least(headings, cells, gap) > width and len(headings) > 1:
        left_out.insert(0, _word(name := names.pop()))
        del headings[name]
    natural = [max(len(text) for text in (headings[n], *(row[n] for row in cells))) for n in names]
    natural = [length + (_BAR + 1) * (bars and n in exhibit.percent) for n, length in zip(names, natural, strict=True)]
    least = [_longest(headings, cells, n) for n in names]
    widths = column_widths(natural, least, width - gap * len(names))
    drawn = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim", show_edge=False)
    for name, wide in zip(names, widths, strict=True):
        numeric = all(isinstance(r[name], int | float | None) and not isinstance(r[name], bool) for r in rows)
        justify = "right" if numeric and rows else "left"
        drawn.add_column(headings[name], justify=justify, overflow="ellipsis", width=wide)
    for row in rows:
        drawn.add_row(*(_cell(name, row, exhibit, bars, places[name]) for name in names))
    hidden = len(exhibit.table) - len(rows)
    more = [f"{hidden:,} more rows"] if hidden else []
    more += [f"not shown because the terminal is too narrow: {', '.join(left_out)}"] if left_out else []
    if more:
        drawn.caption = Text(f"{'; '.join(more)} (--csv, --json or --html)", style="dim")
        drawn.caption_justify = "left"
    return drawn


def _least(headings: dict[str, str], cells: list[dict[str, str]], gap: int) -> int:
    """The width below which some column would break inside a word."""
    return sum(_longest(headings, cells, name) + gap for name in headings)


def _longest(headings: dict[str, str], cells: list[dict[str, str]], name: str) -> int:
    """The longest word of a column."""
    return max(len(word) for text in (headings[name], *(row[name] for row in cells)) for word in text.split())


def _word(name: str) -> str:
    return name.removesuffix("_token").removesuffix("_text").replace("_", " ")


def _places(column: Iterable[Any]) -> int:
    """Decimals of the numbers of a column."""
    return decimals(float(value) for value in column if isinstance(value, float))


def _cell(name: str, row: dict[str, Any], exhibit: Exhibit, bars: bool, places: int) -> Text:
    from rich.text import Text

    from unembed.results import visible_rich

    value = row[name]
    if value is None:
        return Text("·", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, str):
        return visible_rich(value, prose=not name.endswith("token"))
    if name in exhibit.percent:
        number = Text(percent(max(float(value), 0.0)).rjust(4))
        if not bars:
            return number
        bar = Scale(1.0, _BAR, False).right(min(max(float(value), 0.0), 1.0))
        return Text.assemble((bar, PROMOTES), " ", number)
    if isinstance(value, int):
        return Text(f"{value:,}")
    return Text(signed(value, places), style=PROMOTES if value > 0 else OPPOSES if value < 0 else "")

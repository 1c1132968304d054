"""What a circuits command found, as JSON, CSV, a page, or tables on the terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unembed.cli.bars import OPPOSES, PROMOTES, Scale, percent, signed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from unembed.reports import Exhibit, Report

SCHEMA = "unembed.circuits/1"
"""Name of the JSON form; the number rises when a field changes its meaning or goes."""
_ROWS = 40
_BAR = 8
_HYPHENATED = {
    "attention": "atten- tion",
    "composition": "compo- sition",
    "copying": "copy- ing",
    "destination": "desti- nation",
    "duplicate": "dupli- cate",
    "eigenvalues": "eigen- values",
    "induction": "induc- tion",
    "matching": "match- ing",
    "positive": "posi- tive",
    "previous": "previ- ous",
    "resting": "rest- ing",
}
"""Where a heading may break when a table is wider than the terminal."""


def deliver(report: Report, *, as_json: bool, csv: bool, plain: bool, html: Path | None) -> None:
    """Write the parts found in the requested forms; the terminal's own when nothing else was."""
    from unembed.cli.output import show, write_page

    if html is not None:
        from unembed.reports import page

        write_page(html, page(report))
    if as_json:
        tables = {name: exhibit.table.to_dict() for name, exhibit in report.exhibits.items()}
        said = {
            "schema": SCHEMA,
            "title": report.title,
            "provenance": report.provenance.to_dict(),
            "text": [text for section in report.sections for text in section.text],
            "tables": tables,
        }
        sys.stdout.write(json.dumps(said, ensure_ascii=False, allow_nan=False) + "\n")
    elif csv:
        first = next(iter(report.exhibits.values()))
        sys.stdout.write(first.table.to_csv())
    elif html is None or plain:
        show(lambda width: _drawn(report, width, plain), plain=plain)


def _drawn(report: Report, width: int, plain: bool) -> RenderableType:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from unembed.results import visible_rich

    parts: list[Any] = []
    for section in report.sections:
        for exhibit in section.exhibits:
            # Long tables behind a page's fold (every pair, every eigenvalue) are for pages and JSON.
            if not exhibit.folded:
                parts += [Text(exhibit.table.title, style="bold"), _table(exhibit, width, plain), Text()]
        for text in section.text:
            parts.append(Padding(visible_rich(text.replace("`", ""), prose=True), (0, 0, 1, 0), expand=False))
    parts.append(Text(report.provenance.line(), style="dim"))
    return Group(*parts)


def _table(exhibit: Exhibit, width: int, plain: bool) -> RenderableType:
    """A table with the columns that are shares as bars; intervals as plus-minus."""
    from rich.table import Table
    from rich.text import Text

    from unembed.results.column_widths import column_widths

    rows = list(exhibit.table.rows())[:_ROWS]
    names = [n for n in exhibit.table.column_names if not n.endswith(("_low", "_high"))]
    widest = 5 + sum(max(len(_word(n)), 6) + 2 for n in names)
    bars = not plain and widest + (_BAR + 1) * len(exhibit.percent) <= width
    headings, gap = {n: _word(n) for n in names}, 2
    cells = [{n: _cell(n, row, exhibit, False).plain for n in names} for row in rows]
    if _least(headings, cells, gap) > width:
        headings = {n: " ".join(_HYPHENATED.get(word, word) for word in _word(n).split()) for n in names}
        gap = 2 if _least(headings, cells, 2) <= width else 1
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
        drawn.add_row(*(_cell(name, row, exhibit, bars) for name in names))
    if len(exhibit.table) > _ROWS:
        drawn.caption = Text(f"{len(exhibit.table) - _ROWS:,} more rows: --csv, --json or --html", style="dim")
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


def _cell(name: str, row: dict[str, Any], exhibit: Exhibit, bars: bool) -> Text:
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
    return Text(signed(value), style=PROMOTES if value > 0 else OPPOSES if value < 0 else "")

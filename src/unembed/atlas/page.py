"""Write the card of an atlas as Markdown and as an HTML page."""

from __future__ import annotations

from typing import Any

from unembed.document.html import page
from unembed.document.model import Answer, Exhibit, Report
from unembed.results import format_cell


def page_of(answer: Answer) -> str:
    """Return an atlas's card (a summary of its descriptions and their tests) as an HTML page."""
    report = Report("atlas", answer.title, "", "", answer.provenance, answer.sections)
    return page(report)


def markdown(answer: Answer) -> str:
    """Return an atlas's card (a summary of its descriptions and their tests) as Markdown."""
    blocks = [f"# {answer.title}"]
    for section in answer.sections:
        blocks += [f"## {section.title}", *section.text, *(_table(exhibit) for exhibit in section.exhibits)]
    blocks.append(f"Made by {answer.provenance.line()}")
    return "\n\n".join(blocks) + "\n"


def _table(exhibit: Exhibit) -> str:
    table = exhibit.table
    names = [name for name in table.column_names if not name.endswith(("_low", "_high"))]
    rows = ["| " + " | ".join(name.removesuffix("_text").replace("_", " ") for name in names) + " |"]
    rows.append("|" + " --- |" * len(names))
    for row in table.rows():
        cells = []
        for name in names:
            cell = _cell(row[name], percent=name in exhibit.percent)
            if f"{name}_low" in row:
                cell += f" [{_cell(row[f'{name}_low'])}, {_cell(row[f'{name}_high'])}]"
            cells.append(cell)
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _cell(value: Any, *, percent: bool = False) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{format_cell(100 * value, 1)} %" if percent else format_cell(value, 3)
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")

"""A report in a terminal: its findings, each with what was measured, and where the page is."""

from __future__ import annotations

from typing import Any

from unembed.reports.document.model import Report
from unembed.results import visible_rich

_SIGNS = {True: ("✓", "green"), False: ("✕", "yellow"), None: ("·", "dim")}


def summary(report: Report) -> Any:
    """The title, the findings by section and the provenance, as rich draws them."""
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    parts: list[Any] = [visible_rich(report.title, prose=True, style="bold"), visible_rich(report.subtitle, prose=True)]
    for section in report.sections:
        if not section.findings:
            continue
        grid = RichTable.grid(padding=(0, 1))
        grid.add_column(width=1)
        grid.add_column(ratio=1)
        for finding in section.findings:
            sign, style = _SIGNS[finding.agrees]
            said = Text.assemble(
                visible_rich(finding.here, prose=True),
                "\n",
                (f"published: {finding.published}", "dim"),
                (f" ({finding.source})" if finding.source else "", "dim"),
            )
            grid.add_row(Text(sign, style=style), said)
        parts += [Text(""), visible_rich(section.title, prose=True, style="bold"), grid]
    agree = sum(f.agrees is True for f in report.findings)
    parts += [Text(""), Text(f"{agree} of {len(report.findings)} published findings hold here.")]
    parts.append(visible_rich(report.provenance.line(), prose=True, style="dim"))
    return Group(*parts)

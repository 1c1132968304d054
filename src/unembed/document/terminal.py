"""Show the findings of a report in a terminal."""

from __future__ import annotations

from typing import Any

from unembed.document.model import Report, summary_line
from unembed.results import as_written, visible_rich

_SIGNS = {
    "agrees": ("✓", "green"),
    "differs": ("✕", "yellow"),
    "inconclusive": ("·", "dim"),
    "not applicable": ("–", "dim"),
}


def summary(report: Report) -> Any:
    """Return an object that rich can print: the title, the findings by section, and the provenance."""
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    parts: list[Any] = [visible_rich(report.title, prose=True, style="bold"), visible_rich(report.subtitle, prose=True)]
    parts += [Text(""), Text(summary_line(report.findings))]
    for section in report.sections:
        if not section.findings:
            continue
        grid = RichTable.grid(padding=(0, 1))
        grid.add_column(width=1)
        grid.add_column(ratio=1)
        for finding in sorted(section.findings, key=lambda finding: finding.extension):
            sign, style = _SIGNS[finding.verdict]
            lines: list[Any] = [visible_rich(as_written(finding.here), prose=True)]
            kind = "extension" if finding.extension else "claim"
            lines.append((f"\n{kind}: {finding.claim}" + (f" ({finding.source})" if finding.source else ""), "dim"))
            if finding.explanation:
                lines.append((f"\nwhy: {as_written(finding.explanation)}", "dim"))
            if not finding.extension and finding.published not in ("", "in words", finding.claim):
                lines.append((f"\npublished: {as_written(finding.published)}", "dim"))
            if finding.control:
                lines.append((f"\nrandom weights: {as_written(finding.control)}", "dim"))
            if not finding.informative:
                lines.append(("\nnot informative: random weights pass this test too", "dim"))
            grid.add_row(Text(sign, style=style), Text.assemble(*lines))
        parts += [Text(""), visible_rich(section.title, prose=True, style="bold"), grid]
    parts += [Text(""), visible_rich(report.provenance.line(), prose=True, style="dim")]
    return Group(*parts)

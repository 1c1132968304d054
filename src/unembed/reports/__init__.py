"""The published experiments, run again on any model: each number beside the one in the paper.

Owns one module for each paper, what a report consists of, and how it is written (one page, tables, figures). Computes
nothing that another room computes: it asks sweeps, memories, circuits and the lens, and says what came out.

Public names: `report` (which is `unembed.report`), `reopen`, `write`, and what a report consists of: `Report`,
`Section`, `Exhibit`, `Figure`, `Finding`, `Measured`.
"""

from unembed.reports.document.files import reopen, write
from unembed.reports.document.intervals import Measured
from unembed.reports.document.model import Exhibit, Figure, Finding, Report, Section
from unembed.reports.report import STUDIES, report

__all__ = [
    "STUDIES",
    "Exhibit",
    "Figure",
    "Finding",
    "Measured",
    "Report",
    "Section",
    "reopen",
    "report",
    "write",
]

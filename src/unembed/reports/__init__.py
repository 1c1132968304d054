"""The published experiments, run again on any model: each number next to the one in the paper.

Owns one module for each paper, what a report consists of, and how it is written (one page, tables, figures). Computes
nothing that another room computes.

Public names: `report` (which is `unembed.report`), `reopen`, `write`; what a report consists of: `Report`, `Section`,
`Exhibit`, `Figure`, `Finding`, `Measured`; and single sections of the study of circuits, for `unembed circuits`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.document.files import reopen as reopen
from unembed.document.files import write as write
from unembed.document.intervals import Measured as Measured
from unembed.document.model import Exhibit as Exhibit
from unembed.document.model import Figure as Figure
from unembed.document.model import Finding as Finding
from unembed.document.model import Report as Report
from unembed.document.model import Section as Section
from unembed.lazy import import_on_first_use
from unembed.reports.report import STUDIES as STUDIES
from unembed.reports.report import report as report

if TYPE_CHECKING:
    from unembed.document.files import PAGE as PAGE
    from unembed.document.html import page as page
    from unembed.document.numbers import as_written as as_written
    from unembed.document.terminal import summary as summary
    from unembed.reports.elhage2021.sections.head import head_sections as head_sections
    from unembed.reports.elhage2021.sections.heads import composition_section as composition_section
    from unembed.reports.elhage2021.sections.heads import heads_section as heads_section
    from unembed.reports.elhage2021.sections.heads import induction_section as induction_section
    from unembed.reports.elhage2021.sections.positions import offsets_section as offsets_section
    from unembed.reports.elhage2021.sections.positions import virtual_weights_section as virtual_weights_section
    from unembed.reports.elhage2021.sections.prompt import look_section as look_section
    from unembed.reports.elhage2021.sections.prompt import moved_section as moved_section
    from unembed.reports.elhage2021.sections.prompt import score_terms_section as score_terms_section
    from unembed.reports.elhage2021.sections.prompt import virtual_head_section as virtual_head_section
    from unembed.reports.elhage2021.sections.skip_trigrams import skip_trigram_section as skip_trigram_section
    from unembed.reports.elhage2021.sections.stream import direct_path_section as direct_path_section
    from unembed.reports.elhage2021.sections.stream import expansion_section as expansion_section
    from unembed.reports.elhage2021.sections.stream import importance_section as importance_section
    from unembed.reports.elhage2021.sections.stream import in_context_section as in_context_section
    from unembed.reports.elhage2021.sections.stream import stream_section as stream_section
    from unembed.reports.report import find as find
else:
    __getattr__ = import_on_first_use(__name__)

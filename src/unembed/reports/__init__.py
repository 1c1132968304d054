"""Run the published experiments again on any model, and show each measured number next to the published one.

Each paper has a subpackage, which measures what the paper measures and judges the paper's claims. The other modules
are shared by all papers. The analyses themselves are in other packages.

Public names: `report` (which is `unembed.report`), `reopen`, `write`; and the classes that make up a report: `Report`,
`Section`, `Exhibit`, `Figure`, `Finding`, `Measured`.
"""

from unembed.document.files import PAGE as PAGE
from unembed.document.files import prepared as prepared
from unembed.document.files import reopen as reopen
from unembed.document.files import write as write
from unembed.document.intervals import Measured as Measured
from unembed.document.model import Exhibit as Exhibit
from unembed.document.model import Figure as Figure
from unembed.document.model import Finding as Finding
from unembed.document.model import Report as Report
from unembed.document.model import Section as Section
from unembed.document.terminal import summary as summary
from unembed.reports.checkpoint_series import DATES as DATES
from unembed.reports.checkpoint_series import series_report as series_report
from unembed.reports.comparison import VERDICTS as VERDICTS
from unembed.reports.comparison import compared as compared
from unembed.reports.report import STUDIES as STUDIES
from unembed.reports.report import find as find
from unembed.reports.report import report as report

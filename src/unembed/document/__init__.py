"""Reports and answers: sections of text, tables, figures and findings, written as HTML or terminal text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.document.files import reopen as reopen
from unembed.document.files import write as write
from unembed.document.intervals import Measured as Measured
from unembed.document.model import Answer as Answer
from unembed.document.model import Exhibit as Exhibit
from unembed.document.model import Figure as Figure
from unembed.document.model import Finding as Finding
from unembed.document.model import Report as Report
from unembed.document.model import Screen as Screen
from unembed.document.model import Section as Section
from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.document.charts import axis_of as axis_of
    from unembed.document.charts import draw as draw
    from unembed.document.files import PAGE as PAGE
    from unembed.document.html import page as page
    from unembed.document.intervals import share_of as share_of
    from unembed.document.svg import in_plain_colours as in_plain_colours
    from unembed.document.terminal import summary as summary
else:
    __getattr__, __dir__, __all__ = import_on_first_use(__name__)

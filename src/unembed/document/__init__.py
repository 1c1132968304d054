"""Reports and answers: sections of text, tables, figures and findings, written as HTML or terminal text."""

from unembed.document.charts import axis_of as axis_of
from unembed.document.charts import draw as draw
from unembed.document.files import reopen as reopen
from unembed.document.files import write as write
from unembed.document.html import page as page
from unembed.document.intervals import Measured as Measured
from unembed.document.intervals import share_of as share_of
from unembed.document.model import Answer as Answer
from unembed.document.model import Exhibit as Exhibit
from unembed.document.model import Figure as Figure
from unembed.document.model import Finding as Finding
from unembed.document.model import Report as Report
from unembed.document.model import Screen as Screen
from unembed.document.model import Section as Section
from unembed.document.svg import in_plain_colours as in_plain_colours

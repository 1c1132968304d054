"""Figures become pictures of a stated width, whose colours are those of a light page."""

import struct

from unembed.cli.agents.pictures import pictures_of
from unembed.document import Exhibit, Figure, Report, Section
from unembed.document.charts import draw
from unembed.document.svg import in_plain_colours
from unembed.results import Provenance, Table

PROVENANCE = Provenance("wren", "abc", "float32")
TABLE = Table("t", {"layer": [0, 1], "share": [0.2, 0.9]}, PROVENANCE)
FIGURE = Figure("bars", "Bars", "bar", "table", "layer", ("share",))


def test_a_report_has_a_picture_of_each_figure() -> None:
    report = Report("r", "R", "", "", PROVENANCE, (Section("S", (), (Exhibit("table", TABLE),), (FIGURE,)),))
    pictures = pictures_of([report, report])
    assert len(pictures) == 2 and all(struct.unpack(">I", one[16:20]) == (900,) for one in pictures)
    assert len(pictures_of([report] * 9)) == 4


def test_a_drawing_in_plain_colours_has_no_variables_and_the_light_scheme() -> None:
    drawing = draw(FIGURE, TABLE, standalone=True)
    plain = in_plain_colours(drawing)
    assert "var(" in drawing and "var(" not in plain and "prefers-color-scheme" not in plain
    assert ".figure .f0 { fill: #2f6fde; }" in plain and "#6ea8fe" not in plain

"""Convert the figures of reports to PNG pictures, for agents, which cannot open an HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unembed.document import Report

_WIDTH = 900
"""Width of a picture in pixels: large enough to be legible, small enough to cost an agent few tokens."""
_MOST = 4
"""Maximum number of pictures in one answer."""


def pictures_of(reports: Sequence[Report]) -> tuple[bytes, ...]:
    """Return the first figures of the reports as PNG; nothing if the SVG renderer is not installed (`unembed[mcp]`)."""
    try:
        import resvg_py
    except ImportError:
        return ()
    from unembed.document import draw, in_plain_colours

    figures = [(figure, report) for report in reports for section in report.sections for figure in section.figures]
    drawings = (
        in_plain_colours(draw(figure, report[figure.table], standalone=True)) for figure, report in figures[:_MOST]
    )
    return tuple(
        bytes(resvg_py.svg_to_bytes(svg_string=one, width=_WIDTH, font_family="sans-serif")) for one in drawings
    )

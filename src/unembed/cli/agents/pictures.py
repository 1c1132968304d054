"""The figures of results as PNG pictures, for clients that show pictures and cannot run a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unembed.document import Report

_WIDTH = 900
"""Pixels of a picture, which is legible and takes a client few tokens."""
_MOST = 4
"""Pictures of one answer, at most."""


def pictures_of(reports: Sequence[Report]) -> tuple[bytes, ...]:
    """Return the first figures of the results; none where the renderer of SVG is not installed (`unembed[mcp]`)."""
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

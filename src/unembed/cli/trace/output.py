"""Write traces as JSON, as CSV, as an HTML page, or in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from unembed.cli.output import show, write_json, write_page
from unembed.cli.trace.html import page
from unembed.results import Provenance, Table
from unembed.trace import TraceView

if TYPE_CHECKING:
    from rich.console import RenderableType

    from unembed.cli.option_groups import Output


SCHEMA_SEVERAL = "unembed.traces/1"
"""The schema of JSON output for several prompts; its list `traces` has an object for each prompt."""


def deliver(
    views: Sequence[TraceView], provenance: Provenance, draw: Callable[..., RenderableType], output: Output
) -> None:
    """Write the traces of one prompt or several in the requested formats; in the terminal by default.

    The HTML page shows the first prompt only.

    Args:
        views: one for each prompt.
        draw: a function of a view and the terminal's width that draws the view.
    """
    if output.html is not None:
        write_page(output.html, page(views[0], provenance.line()))
    if output.as_json:
        traces = [view.to_dict() for view in views]
        write_json({"schema": SCHEMA_SEVERAL, "traces": traces} if len(views) > 1 else traces[0])
    elif output.csv:
        rows = [
            ({"prompt": number} if len(views) > 1 else {}) | row
            for number, view in enumerate(views)
            for row in _readings(view)
        ]
        sys.stdout.write(Table("", {name: [row[name] for row in rows] for name in rows[0]}, provenance).to_csv())
    elif output.html is None or output.plain:
        for number, view in enumerate(views):
            if number:
                print()
            show(partial(draw, view, plain=output.plain), plain=output.plain)


def _readings(view: TraceView) -> list[dict[str, Any]]:
    """Return a dict for each listed token: its layer, position, rank, id, text and probability."""
    assert view.grid is not None
    return [
        {"layer": layer, "position": position, "rank": rank, **asdict(candidate)}
        for layer, cells in zip(view.grid.layers, view.grid.rows, strict=True)
        for position, cell in enumerate(cells)
        for rank, candidate in enumerate(cell, start=1)
    ]

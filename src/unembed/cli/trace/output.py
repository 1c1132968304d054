"""A view to where the user wants it: JSON, CSV, a page, the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unembed.cli.output import show, write_page
from unembed.cli.trace.html import page
from unembed.results import Provenance, Table
from unembed.schemas.trace import TraceView

if TYPE_CHECKING:
    from rich.console import RenderableType


def deliver(
    view: TraceView,
    provenance: Provenance,
    draw: Callable[..., RenderableType],
    *,
    as_json: bool,
    csv: bool,
    plain: bool,
    html: Path | None,
) -> None:
    """Write the view in the requested forms; the terminal's own when nothing else was."""
    if html is not None:
        write_page(html, page(view, provenance.line()))
    if as_json:
        json.dump(asdict(view), sys.stdout, ensure_ascii=False, allow_nan=False)
        print()
    elif csv:
        sys.stdout.write((_readings(view, provenance) if view.grid else _shares(view, provenance)).to_csv())
    elif html is None or plain:
        show(lambda width: draw(view, width, plain=plain), plain=plain)


def _readings(view: TraceView, provenance: Provenance) -> Table:
    """One row for every layer, position and rank of the grid."""
    assert view.grid is not None
    rows = [
        {"layer": layer, "position": position, "rank": rank, **asdict(candidate)}
        for layer, cells in zip(view.grid.layers, view.grid.rows, strict=True)
        for position, cell in enumerate(cells)
        for rank, candidate in enumerate(cell, start=1)
    ]
    return _table(f"Readings at {view.grid.point}", rows, provenance)


def _shares(view: TraceView, provenance: Provenance) -> Table:
    """One row for every writer of every attribution."""
    rows = [{"by": attribution.by, **asdict(row)} for attribution in view.attributions for row in attribution.rows]
    return _table(f"Attribution of {view.target.token}", rows, provenance)


def _table(title: str, rows: list[dict[str, Any]], provenance: Provenance) -> Table:
    return Table(title, {name: [row[name] for row in rows] for name in rows[0]}, provenance)

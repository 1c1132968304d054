"""A view to where the user wants it: JSON, CSV, a page, the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unembed.cli.output import show, write_page
from unembed.cli.trace_page import page
from unembed.results import Passport, Table
from unembed.views.trace_view import TraceView


def deliver(
    view: TraceView,
    passport: Passport,
    draw: Callable[..., Any],
    *,
    as_json: bool,
    csv: bool,
    plain: bool,
    html: Path | None,
) -> None:
    """Write the view in the forms asked for; the terminal's own when nothing else was."""
    if html is not None:
        write_page(html, page(view, passport.line()))
    if as_json:
        json.dump(view.to_dict(), sys.stdout, ensure_ascii=False, allow_nan=False)
        print()
    elif csv:
        sys.stdout.write((_readings(view, passport) if view.grid else _shares(view, passport)).to_csv())
    elif html is None or plain:
        show(lambda width: draw(view, width, plain=plain), plain=plain)


def _readings(view: TraceView, passport: Passport) -> Table:
    """One row for every layer, position and place of the grid."""
    assert view.grid is not None
    rows = [
        {"layer": layer, "position": position, "place": place, **asdict(candidate)}
        for layer, cells in zip(view.grid.layers, view.grid.rows, strict=True)
        for position, cell in enumerate(cells)
        for place, candidate in enumerate(cell)
    ]
    return _table(f"Readings at {view.grid.point}", rows, passport)


def _shares(view: TraceView, passport: Passport) -> Table:
    """One row for every writer of every account."""
    rows = [{"by": account.by, **asdict(row)} for account in view.accounts for row in account.rows]
    return _table(f"Account of {view.target.token}", rows, passport)


def _table(title: str, rows: list[dict[str, Any]], passport: Passport) -> Table:
    return Table(title, {name: [row[name] for row in rows] for name in rows[0]}, passport)

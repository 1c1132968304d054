"""`unembed doctor`: what this machine has, what is missing, and the command that installs it."""

from __future__ import annotations

import dataclasses
from typing import Any

import typer

from unembed.cli.command import command
from unembed.cli.option_groups import Json, Plain
from unembed.cli.output import show, write_json

_SIGNS = {"ok": "✓", "absent": "·", "missing": "✗", "too old or new": "✗"}
_STYLES = {"ok": "green", "absent": "dim", "missing": "bold red", "too old or new": "bold red"}


@command("doctor", "unembed doctor")
def doctor(as_json: Json = False, plain: Plain = False) -> None:
    """Check which packages and devices are present.

    The exit status is 1 if a required package is missing or has the wrong version.
    """
    import unembed

    found = unembed.check_environment()
    broken = [finding for finding in found if finding.state in ("missing", "too old or new")]
    if as_json:
        rows = [dataclasses.asdict(finding) for finding in found]
        write_json({"schema": "unembed.doctor/1", "findings": rows})
    else:
        show(lambda _: _drawn(found, plain), plain=plain)
    if broken:
        raise typer.Exit(1)


def _drawn(found: list[Any], plain: bool) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("", "part", "found", "used for", "to get it"):
        table.add_column(name)
    for finding in found:
        sign = finding.state if plain else _SIGNS[finding.state]
        table.add_row(
            Text(sign, style=_STYLES[finding.state]),
            Text(finding.what, style="dim" if finding.state == "absent" else ""),
            Text(finding.found or "–"),
            Text(finding.used_for, style="dim"),
            Text(finding.command),
        )
    return table

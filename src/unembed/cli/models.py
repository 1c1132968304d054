"""`unembed models`: what ships with the package."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from unembed.cli.command import command
from unembed.cli.option_groups import Json


@command("models", "unembed models")
def models(as_json: Json = False) -> None:
    """List the shipped models, their sizes, and the paths of their model cards."""
    # Plain files are read, so that the answer comes without torch.
    from unembed.models import SHIPPED, shipped_folder

    found = [_described(name, about, shipped_folder(name)) for name, about in SHIPPED.items()]
    if as_json:
        json.dump({"schema": "unembed.models/1", "models": found}, sys.stdout, ensure_ascii=False)
        print()
        return
    from unembed.cli.output import show

    show(lambda _: _drawn(found))


def _described(name: str, about: str, folder: Path) -> dict[str, Any]:
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    card = folder / "README.md"
    return {
        "name": name,
        "what": about,
        "megabytes": round(sum(path.stat().st_size for path in files) / 1e6, 1),
        "card": str(card) if card.exists() else None,
    }


def _drawn(found: list[dict[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("name", "what", "MB"):
        table.add_column(name, justify="right" if name == "MB" else "left")
    for entry in found:
        table.add_row(Text(entry["name"], style="bold"), Text(entry["what"]), str(entry["megabytes"]))
    return table

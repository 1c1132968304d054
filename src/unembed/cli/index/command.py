"""`unembed index`: query, check and export an index; `build` is in a separate module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from unembed.cli.command import command
from unembed.cli.option_groups import Json
from unembed.options import Context, Layer, Option

Folder = Annotated[Path, Option("The index's folder.", metavar="DIR")]


@command("index status", "unembed index status mine.index")
def status(folder: Folder, as_json: Json = False) -> None:
    """Show an index's model and corpus, the progress of its build, and its size on disk."""
    import unembed
    from unembed.cli.index.view import deliver_status

    deliver_status(unembed.Index.open(folder, partial=True), as_json)


@command("index verify", "unembed index verify mine.index")
def verify(folder: Folder, as_json: Json = False) -> None:
    """Check every file against its checksum; exit status 1 if one is damaged."""
    import unembed
    from unembed.cli.index.view import deliver, verify_lines

    index = unembed.Index.open(folder, partial=True)
    found = index.verify()
    deliver(found.to_dict(), as_json, lambda: print("\n".join(verify_lines(index, found))))
    if any(fault is not None for fault in found.columns["fault"]):
        raise typer.Exit(1)


@command("index export", "unembed index export mine.index triggers.parquet --layer 4")
def export(
    folder: Folder,
    file: Annotated[Path, Option("The file; its ending sets the format: .parquet, .jsonl, .csv.")],
    *,
    kind: Annotated[
        Literal["parquet", "jsonl", "csv"] | None,
        Option("The format, regardless of the file's ending.", "f", name="format"),
    ] = None,
    layer: Layer = None,
    context: Context = None,
    as_json: Json = False,
) -> None:
    """Write every trigger with its text to one file."""
    import sys

    import unembed
    from unembed.cli.index.view import deliver
    from unembed.results import visible

    chosen = kind or file.suffix.removeprefix(".")
    rows = unembed.Index.open(folder).export(file, chosen, layer=layer, context=context)
    wrote = f"wrote {rows:,} triggers to {visible(str(file), prose=True)}"
    deliver(
        {"schema": "unembed.index.export/1", "file": str(file), "format": chosen, "rows": rows},
        as_json,
        lambda: print(wrote, file=sys.stderr),
    )

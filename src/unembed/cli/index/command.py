"""`unembed index`: query, check and export an index; `build` is in a separate module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from unembed.cli.command import command
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Json, Opening, Output
from unembed.options import AnySide, Context, Layer, Memory, Option, Top

Folder = Annotated[Path, Option("The index's folder.", metavar="DIR")]


@command("index status", "unembed index status mine.index")
def status(folder: Folder, as_json: Json = False) -> None:
    """Show an index's model and corpus, the progress of its build, and its size on disk."""
    import unembed
    from unembed.cli.index.view import deliver_status

    deliver_status(unembed.Index.open(folder, partial=True), as_json)


@command("index triggers", "unembed index triggers mine.index L4M571 --top 5")
def triggers(
    folder: Folder,
    memory: Memory,
    *,
    top: Top = 25,
    pole: AnySide = None,
    context: Context = None,
    output: Output = Output(),
) -> None:
    """Show the prefixes on which a key fires most, their last token marked, and what its value promotes there.

    -L5M278 is the memory at negative coefficients, as --pole negative is.
    """
    layer, index, named = memory
    pole = pole or named
    import unembed
    from unembed.cli.index.view import deliver_passages
    from unembed.models import SHIPPED

    opened = unembed.Index.open(folder)
    found = opened.triggers(layer, index, top, pole=pole, context=context)
    is_known = pole == "positive" or opened.suppressed is not None
    value = opened.value_tokens(layer, index, 10, bottom=pole == "negative") if is_known else None
    deliver_passages(found, value, output)
    if output.for_terminal and opened.provenance.model in SHIPPED:  # the place of another model is not known
        shown = opened.memory_name(*opened.memory(layer, index), pole)
        print_explorer_link(Opening(model=opened.provenance.model), "memory", index=folder, memory=shown)


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

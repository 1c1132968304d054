"""`unembed index export`: write all triggers (text positions where a memory, an FFN neuron, fires most) to one file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from unembed.cli.command import command
from unembed.cli.option_groups import Json
from unembed.cli.output import write_json
from unembed.options import Context, Layer, Option
from unembed.results import visible


@command("index export", "unembed index export mine.index triggers.parquet --layer 4")
def export(
    folder: Annotated[Path, Option("Folder of the index.", metavar="DIR")],
    file: Annotated[Path, Option("The file to write; its ending sets the format: .parquet, .jsonl or .csv.")],
    *,
    kind: Annotated[
        Literal["parquet", "jsonl", "csv"] | None,
        Option("Format to write, whatever the file's ending.", "f", name="format"),
    ] = None,
    layer: Layer = None,
    context: Context = None,
    as_json: Json = False,
) -> None:
    """Write every trigger (a text position where a memory, an FFN neuron, fires most) with its text to one file."""
    import unembed

    chosen = kind or file.suffix.removeprefix(".")
    rows = unembed.Index.open(folder).export(file, chosen, layer=layer, context=context)
    if as_json:
        write_json({"schema": "unembed.index.export/1", "file": str(file), "format": chosen, "rows": rows})
    else:
        print(f"wrote {rows:,} triggers to {visible(str(file), prose=True)}", file=sys.stderr)

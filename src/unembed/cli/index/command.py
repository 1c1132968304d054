"""`unembed index`: query, check and export an index; `build` is in a separate module."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unembed.cli import options
from unembed.cli.explorer_link import memory_in_address, print_explorer_link
from unembed.cli.index.build import build
from unembed.cli.option_groups import Opening, Output, grouped

if TYPE_CHECKING:
    from collections.abc import Callable

    from unembed import Index
    from unembed.results import Table

app = typer.Typer(
    name="index",
    help="Build, query and check an index: every key's triggers over a corpus, and every value's top tokens.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command("build")(build)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The index's folder.", show_default=False)]
Rows = Annotated[int, typer.Option("--top", "-k", min=1, help="Maximum number of rows.")]
Pole = Annotated[
    Literal["positive", "negative"],
    typer.Option(help="Largest or lowest coefficients (an index of gated layers has both)."),
]
Context = Annotated[
    int | None, typer.Option(min=0, help="Tokens shown of each prefix; default: as many as fit.", show_default=False)
]


@app.command("status")
def status(folder: Folder, as_json: options.Json = False) -> None:
    """Show an index's model and corpus, the progress of its build, and its size on disk."""
    import unembed
    from unembed.cli.index.view import deliver_status

    deliver_status(unembed.Index.open(folder, partial=True), as_json)


@app.command("triggers")
@grouped
def triggers(
    folder: Folder,
    memory: options.Memory,
    number: options.MemoryNumber = None,
    top: Rows = 25,
    pole: Pole = "positive",
    context: Context = None,
    output: Output = Output(),
) -> None:
    """Show the prefixes on which a key fires most, their last token marked, and what its value promotes."""
    layer, index = options.memory_and_number(memory, number)
    import unembed
    from unembed.cli.index.view import deliver_passages
    from unembed.models import SHIPPED

    opened = unembed.Index.open(folder)
    found = opened.triggers(layer, index, top, pole=pole, context=context)
    value = opened.value_tokens(layer, index, 10)
    deliver_passages(found, value, output)
    if output.for_terminal and opened.provenance.model in SHIPPED:  # the place of another model is not known
        shown = memory_in_address(layer, index)
        print_explorer_link(Opening(model=opened.provenance.model), "memory", index=folder, memory=shown)


@app.command("search")
@grouped
def search(
    folder: Folder,
    text: Annotated[str, typer.Argument(help='Words, all required; "a phrase"; begin*.', show_default=False)],
    top: Rows = 20,
    pole: Pole = "positive",
    context: Context = None,
    output: Output = Output(),
) -> None:
    """Find triggers by their text, the strongest first."""
    import unembed
    from unembed.cli.index.view import deliver_passages

    found = unembed.Index.open(folder).search(text, top, pole=pole, context=context)
    deliver_passages(found, None, output)


@app.command("promoting")
@grouped
def promoting(
    folder: Folder,
    token: Annotated[str, typer.Argument(help="One token, its leading space included.", show_default=False)],
    top: Rows = 20,
    by: Annotated[Literal["score", "rank"], typer.Option(help="Sort by score or by rank.")] = "score",
    output: Output = Output(),
) -> None:
    """Find the values that promote a token."""
    _table(folder, lambda index: index.promoting(token, top, by=by), output)


@app.command("firing")
@grouped
def firing(
    folder: Folder,
    text: Annotated[str, typer.Argument(help="Any text; the model is run on it.", show_default=False)],
    top: Rows = 20,
    by: Annotated[
        Literal["strength", "coefficient"],
        typer.Option(help="Sort by coefficient, or by strength: relative to the key's largest."),
    ] = "strength",
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="Folder of the model; default: found by the name in the index.", show_default=False
        ),
    ] = None,
    output: Output = Output(),
) -> None:
    """Find the keys that fire most on a text."""
    _table(folder, lambda index: index.firing_on(text, top, by=by), output, model)


@app.command("similar")
@grouped
def similar(
    folder: Folder,
    memory: options.Memory,
    number: options.MemoryNumber = None,
    top: Rows = 20,
    among: Annotated[Literal["values", "keys"], typer.Option(help="Compare values or keys.")] = "values",
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="Folder of the model; default: found by the name in the index.", show_default=False
        ),
    ] = None,
    output: Output = Output(),
) -> None:
    """Find the memories (FFN neurons) whose values, or keys, point the same way."""
    layer, index = options.memory_and_number(memory, number)
    _table(folder, lambda opened: opened.similar(layer, index, top, among=among), output, model)


@app.command("sql")
@grouped
def sql(
    folder: Folder,
    query: Annotated[
        str,
        typer.Argument(
            help="One SELECT over triggers, values, statistics, vocabulary, documents, labels.", show_default=False
        ),
    ],
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds after which the query is stopped.")] = 60.0,
    output: Output = Output(),
) -> None:
    """Run one SELECT statement, read-only and restricted to the index."""
    _table(folder, lambda index: index.sql(query, timeout=timeout), output)


@app.command("verify")
def verify(folder: Folder, as_json: options.Json = False) -> None:
    """Check every file against its checksum; exit status 1 if one is damaged."""
    import unembed
    from unembed.cli.index.view import deliver, verify_lines

    index = unembed.Index.open(folder, partial=True)
    found = index.verify()
    deliver(found.to_dict(), as_json, lambda: print("\n".join(verify_lines(index, found))))
    if any(fault is not None for fault in found.columns["fault"]):
        raise typer.Exit(1)


@app.command("export")
def export(
    folder: Folder,
    file: Annotated[
        Path, typer.Argument(help="The file; its ending sets the format: .parquet, .jsonl, .csv.", show_default=False)
    ],
    kind: Annotated[
        Literal["parquet", "jsonl", "csv"] | None,
        typer.Option("--format", "-f", help="The format, regardless of the file's ending.", show_default=False),
    ] = None,
    layer: options.Layer = None,
    context: Context = None,
    as_json: options.Json = False,
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


def _table(
    folder: Path,
    query: Callable[[Index], Table],
    output: Output,
    model: str | None = None,
) -> None:
    import unembed
    from unembed.cli.model_loading import opened

    index = unembed.Index.open(folder)
    if model is not None:
        index.attach(opened(model, dtype=index.provenance.dtype))
    output.deliver(query(index))

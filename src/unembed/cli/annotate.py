"""`unembed annotate`: annotation files of value concepts, and agreement of annotators."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from unembed.cli import options

app = typer.Typer(
    name="annotate",
    help="Let people name the concepts of memories (FFN neurons), and measure how far annotators agree.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Files = Annotated[list[Path], typer.Argument(metavar="FILE", help="Filled-in annotation files.", show_default=False)]


@app.command("export")
def export(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The JSON file to write.", show_default=False)],
    memories: Annotated[
        list[str] | None, typer.Option("--memory", metavar="MEMORY", help="A memory to annotate; repeatable.")
    ] = None,
    per_layer: Annotated[int, typer.Option(min=1, help="Memories drawn from each layer.")] = 10,
    top: Annotated[int, typer.Option("--top", "-k", min=4, help="Top tokens of each value.")] = 30,
    model: options.Model = "wren",
    revision: options.Revision = None,
    tokenizer: options.Tokenizer = None,
    offline: options.Offline = False,
    dtype: options.DType = None,
    device: options.Device = None,
    seed: options.Seed = None,
) -> None:
    """Write the top tokens of values, with definitions and instructions, for a person to annotate."""
    named = [options.memory(text, "--memory") for text in memories or []]
    options.check_writable(out)
    import unembed
    from unembed.cli.model_loading import opened
    from unembed.results import visible

    lm = opened(model, tokenizer=tokenizer, revision=revision, offline=offline, dtype=dtype, device=device, seed=seed)
    found = unembed.value_concepts(lm, named or None, per_layer=per_layer, seed=seed or 0, top=top, embedding=False)
    path = unembed.annotation.export(found, out)
    print(f"wrote {len(found.labels)} vectors to {visible(str(path), prose=True)}", file=sys.stderr)


@app.command("import")
def import_files(
    files: Files,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write every pattern as Parquet.", show_default=False)
    ] = None,
    index: Annotated[
        Path | None,
        typer.Option("--index", metavar="DIR", help="Append the patterns to this index's labels.", show_default=False),
    ] = None,
    as_json: options.Json = False,
    csv: options.Csv = False,
    plain: options.Plain = False,
) -> None:
    """Check filled-in files against the instructions, and show what each annotator found."""
    options.check_output(None, json=as_json, csv=csv, plain=plain)
    if out is not None:
        options.check_writable(out)
    import unembed
    from unembed.cli.output import deliver_table

    read = [unembed.annotation.load(path) for path in files]
    if out is not None:
        unembed.annotation.patterns_table(read).to_parquet(out)
    if index is not None:
        new = unembed.annotation.add_to_index(read, unembed.Index.open(index))
        print(f"appended {new} labels", file=sys.stderr)
    deliver_table(unembed.annotation.summary(read), as_json=as_json, csv=csv, plain=plain, html=None)


@app.command("agreement")
def agreement(
    files: Files,
    automatic: Annotated[
        bool,
        typer.Option("--automatic", help="Include the program's own concepts as one more annotator; loads the model."),
    ] = False,
    model: options.Model = "wren",
    revision: options.Revision = None,
    tokenizer: options.Tokenizer = None,
    offline: options.Offline = False,
    dtype: options.DType = None,
    device: options.Device = None,
    as_json: options.Json = False,
    csv: options.Csv = False,
    plain: options.Plain = False,
) -> None:
    """Kappa of annotators, token by token: Cohen's for each pair, Fleiss' for three or more."""
    options.check_output(None, json=as_json, csv=csv, plain=plain)
    import unembed
    from unembed.cli.output import deliver_table

    read: list[Any] = [unembed.annotation.load(path) for path in files]
    provenance = None
    if automatic:
        from unembed.cli.model_loading import opened

        lm = opened(model, tokenizer=tokenizer, revision=revision, offline=offline, dtype=dtype, device=device)
        memories = [options.memory(vector, "vector") for vector in read[0].vectors]
        found = unembed.value_concepts(lm, memories, top=max(read[0].n_tokens), embedding=False)
        read.append(unembed.annotation.automatic(found))
        provenance = found.provenance
    table = unembed.annotation.token_agreement(read, provenance)
    deliver_table(table, as_json=as_json, csv=csv, plain=plain, html=None)

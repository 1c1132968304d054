"""`unembed annotate`: annotation files of value concepts, and agreement of annotators."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unembed.cli import options
from unembed.cli.option_groups import Opening, Output, grouped
from unembed.results import check_writable

if TYPE_CHECKING:
    from unembed.annotation import Annotation

app = typer.Typer(
    name="annotate",
    help="Collect people's names for the concepts of memories (FFN neurons), and measure agreement.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Files = Annotated[list[Path], typer.Argument(metavar="FILE", help="Filled-in annotation files.", show_default=False)]


@app.command("export")
@grouped
def export(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The JSON file to write.", show_default=False)],
    memories: Annotated[
        list[str] | None,
        typer.Option("--memory", metavar="MEMORY", help="A memory (FFN neuron) to annotate; repeatable."),
    ] = None,
    per_layer: Annotated[int, typer.Option(min=1, help="Memories sampled from each layer.")] = 10,
    top: Annotated[int, typer.Option("--top", "-k", min=4, help="Top tokens of each value.")] = 30,
    opening: Opening = Opening(),
    seed: options.Seed = None,
) -> None:
    """Write the top tokens of values, with definitions and instructions, for a person to annotate."""
    named = [options.memory(text, "--memory") for text in memories or []]
    check_writable(out)
    import unembed
    from unembed.results import visible

    lm = opening.open(seed)
    found = unembed.value_concepts(lm, named or None, per_layer=per_layer, seed=seed or 0, top=top, embedding=False)
    path = unembed.annotation.export(found, out)
    print(f"wrote {len(found.labels)} vectors to {visible(str(path), prose=True)}", file=sys.stderr)


@app.command("import")
@grouped
def import_files(
    files: Files,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write every pattern as Parquet.", show_default=False)
    ] = None,
    index: Annotated[
        Path | None,
        typer.Option("--index", metavar="DIR", help="Append the patterns to this index's labels.", show_default=False),
    ] = None,
    output: Output = Output(),
) -> None:
    """Check filled-in files against the instructions, and show what each annotator found."""
    if out is not None:
        check_writable(out)
    import unembed

    read = _annotations(files)
    if out is not None:
        unembed.annotation.patterns_table(read).to_parquet(out)
    if index is not None:
        new = unembed.annotation.add_to_index(read, unembed.Index.open(index))
        print(f"appended {new} labels", file=sys.stderr)
    output.deliver(unembed.annotation.summary(read))


@app.command("agreement")
@grouped
def agreement(
    files: Files,
    automatic: Annotated[
        bool,
        typer.Option("--automatic", help="Include the program's own concepts as one more annotator; loads the model."),
    ] = False,
    opening: Opening = Opening(),
    output: Output = Output(),
) -> None:
    """Kappa of annotators, token by token: Cohen's for each pair, Fleiss' for three or more."""
    import unembed

    read: list[Any] = _annotations(files)
    provenance = None
    if automatic:
        lm = opening.open()
        memories = [options.memory(vector, "vector") for vector in read[0].vectors]
        found = unembed.value_concepts(lm, memories, top=max(read[0].n_tokens), embedding=False)
        read.append(unembed.annotation.automatic(found))
        provenance = found.provenance
    table = unembed.annotation.token_agreement(read, provenance)
    output.deliver(table)


def _annotations(files: list[Path]) -> list[Annotation]:
    """The files of different annotators.

    Raises:
        typer.BadParameter: one is given twice.
    """
    import unembed

    seen: set[Path] = set()
    for path in files:
        if path.resolve() in seen:
            raise typer.BadParameter(f"{path} is given twice; each annotator counts once", param_hint="FILE")
        seen.add(path.resolve())
    return [unembed.annotation.load(path) for path in files]

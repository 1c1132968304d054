"""`unembed annotate`: annotation files for concepts of values, and the agreement of annotators."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unembed.cli.command import command
from unembed.cli.option_groups import Opening, Output
from unembed.names import read_signed_memory
from unembed.options import AnySeed, Memories, Option, Out, PerLayer, TopTokens
from unembed.results import check_writable

if TYPE_CHECKING:
    from unembed.annotation import Annotation

Files = Annotated[list[Path], Option("Filled-in annotation files.", metavar="FILE")]


@command("annotate export", "unembed annotate export sheet.json --per-layer 10 --seed 1")
def export(
    out: Annotated[Path, Option("The JSON file to write.", metavar="FILE")],
    memories: Memories = None,
    per_layer: PerLayer = 10,
    top_tokens: TopTokens = 30,
    opening: Opening = Opening(),
    seed: AnySeed = None,
) -> None:
    """Write the top tokens of values, with definitions and instructions, for a person to annotate."""
    check_writable(out)
    import unembed
    from unembed.results import visible

    lm = opening.open(seed)
    found = unembed.value_concepts(
        lm, memories or None, per_layer=per_layer, seed=seed or 0, top=top_tokens, embedding=False
    )
    path = unembed.annotation.export(found, out)
    print(f"wrote {len(found.labels)} vectors to {visible(str(path), prose=True)}", file=sys.stderr)


@command("annotate import", "unembed annotate import ann.json ben.json --out patterns.parquet")
def import_files(
    files: Files,
    out: Out = None,
    into: Annotated[
        Path | None, Option("Append the patterns to the labels of this index.", metavar="DIR", aliases=("--index",))
    ] = None,
    output: Output = Output(),
) -> None:
    """Check filled-in files against the instructions, and show what each annotator found.

    --out writes every pattern as Parquet.
    """
    if out is not None:
        check_writable(out)
    import unembed

    read = _annotations(files)
    if out is not None:
        unembed.annotation.patterns_table(read).to_parquet(out)
    if into is not None:
        new = unembed.annotation.add_to_index(read, unembed.Index.open(into))
        print(f"appended {new} labels", file=sys.stderr)
    output.deliver(unembed.annotation.summary(read))


@command("annotate agreement", "unembed annotate agreement ann.json ben.json --automatic")
def agreement(
    files: Files,
    automatic: Annotated[
        bool, Option("Count the program as one more annotator, with the concepts that it finds; this loads the model.")
    ] = False,
    opening: Opening = Opening(),
    output: Output = Output(),
) -> None:
    """Measure the kappa of annotators, token by token: Cohen's for each pair, Fleiss' for three or more."""
    import unembed

    read: list[Any] = _annotations(files)
    provenance = None
    if automatic:
        lm = opening.open()
        memories = [read_signed_memory(vector) for vector in read[0].vectors]
        found = unembed.value_concepts(lm, memories, poles="named", top=max(read[0].n_tokens), embedding=False)
        read.append(unembed.annotation.automatic(found))
        provenance = found.provenance
    table = unembed.annotation.token_agreement(read, provenance)
    output.deliver(table)


def _annotations(files: list[Path]) -> list[Annotation]:
    """Read the files of different annotators.

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

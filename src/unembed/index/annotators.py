"""Analyses of files in which annotators named patterns: what each annotator found, and how far they agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unembed.analyses import Analysis, Cost, Needs
from unembed.annotation import Annotation, add_to_index, load, patterns_table, summary, token_agreement
from unembed.document.model import Answer
from unembed.errors import InvalidInput
from unembed.names import read_signed_memory
from unembed.options import Option, Out
from unembed.results import Table, check_writable

if TYPE_CHECKING:
    from unembed.models.model_source import UnopenedModel

Files = Annotated[list[Path], Option("Annotation files that annotators have filled in.", metavar="FILE")]


def import_files(
    files: Files,
    *,
    out: Out = None,
    into: Annotated[
        Path | None,
        Option(
            "Store the patterns that annotators found as labels of memories (FFN neurons), in the index in this "
            "folder.",
            metavar="DIR",
            aliases=("--index",),
        ),
    ] = None,
) -> Answer:
    """Check filled-in annotation files against the instructions, and show what each annotator found.

    --out writes every pattern to a Parquet file.

    Caution: The shares show how much an annotator named, not whether others would name the same:
    `unembed annotate agreement` measures that.
    """
    if out is not None:
        check_writable(out)
    read = _annotations(files)
    if out is not None:
        patterns_table(read).to_parquet(out)
    remarks: tuple[str, ...] = ()
    if into is not None:
        from unembed.index.index import Index

        remarks = (f"appended {add_to_index(read, Index.open(into))} labels",)
    return Answer.of_table(summary(read), remarks=remarks)


def agreement(
    model: UnopenedModel,
    files: Files,
    *,
    with_program: Annotated[
        bool,
        Option(
            "Add unembed itself as an annotator, with the concepts that it finds; this loads the model.",
            name="automatic",
        ),
    ] = False,
) -> Table:
    """Measure the agreement of annotators token by token: Cohen's kappa for each pair, Fleiss' kappa for three or more.

    Caution: Where nearly all tokens, or almost no tokens, are in a pattern, kappa is low even if annotators agree.
    """
    read = _annotations(files)
    if not with_program:
        return token_agreement(read)
    from unembed.annotation import automatic
    from unembed.concepts.value_concepts import value_concepts

    memories = [read_signed_memory(vector) for vector in read[0].vectors]
    found = value_concepts(model.open(), memories, poles="named", top=max(map(len, read[0].ids)), embedding=False)
    return token_agreement([*read, automatic(found)], found.provenance)


def _annotations(files: Sequence[Path]) -> list[Annotation]:
    """Read annotation files; a file that is given twice is an error."""
    places = [path.resolve() for path in files]
    if twice := [path for n, path in enumerate(files) if places[n] in places[:n]]:
        raise InvalidInput(f"{twice[0]} is given twice", why="each annotator counts once")
    return [load(path) for path in files]


ANALYSES = (
    Analysis(
        "annotate import",
        import_files,
        Needs.NOTHING,
        Cost.INSTANT,
        "unembed annotate import ann.json ben.json --out patterns.parquet",
    ),
    Analysis(
        "annotate agreement",
        agreement,
        Needs.UNOPENED,
        Cost.SECONDS,
        "unembed annotate agreement ann.json ben.json --automatic",
    ),
)

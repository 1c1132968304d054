"""`unembed report`: repeat a paper's experiments on a model, and compare the results with the published ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unembed.cli.command import command
from unembed.cli.option_groups import MODEL_HELP, Opening, TextOutput
from unembed.cli.output import show, write_json
from unembed.cli.progress import ProgressLine
from unembed.errors import InvalidInput
from unembed.options import Corpus, IndexFolder, Option, Out, Seed

if TYPE_CHECKING:
    from unembed.reports import Report


@dataclass(frozen=True, kw_only=True)
class Openings(Opening):
    """Which models to open, and how."""

    model: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]  # the only group that opens several
        list[str] | None,
        Option(MODEL_HELP, "m"),
    ] = None

    def each(self) -> list[Opening]:
        """Return a group with one model for each of the models."""
        others = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "model"}
        names = self.model or [os.environ.get("UNEMBED_MODEL", "wren")]
        return [Opening(model=name, **others) for name in dict.fromkeys(names)]


@command("report", "unembed report geva2021 --corpus shipped --out report")
def report(
    name: Annotated[str, Option("The paper: geva2021, geva2022 or elhage2021.")],
    corpus: Corpus = None,
    index: IndexFolder = None,
    out: Out = None,
    trigger_corpus: Annotated[
        str | None,
        Option(
            "Text in which to find triggers (positions where a memory fires most); geva2021 only. Default: --corpus."
        ),
    ] = None,
    detokenize: Annotated[
        bool | None,
        Option("Undo WikiText's spacing of punctuation; --as-written: use the text as it is.", off="--as-written"),
    ] = None,
    moses: Annotated[
        bool, Option("Split words with the Moses tokenizer, as the papers' code did for WikiLM (needs sacremoses).")
    ] = False,
    option: Annotated[
        list[str] | None,
        Option("Set an option of the report, such as examples=2000; repeatable.", metavar="NAME=VALUE"),
    ] = None,
    render: Annotated[bool, Option("Write the page again from the report's saved tables; run no model.")] = False,
    opening: Openings = Openings(),
    seed: Seed = 0,
    output: TextOutput = TextOutput(),
) -> None:
    """Repeat a paper's experiments on a model; write a page with its tables and figures and the published numbers.

    Triggers (text positions where a memory, an FFN neuron, fires most) come from --index, or else from the text.
    WikiText separates punctuation by spaces; for models of ordinary text this spacing is undone in the shipped text,
    unless an option says otherwise.
    The command writes to the folder report, or --out: report.html (self-contained), report.json, tables/ (Parquet,
    JSON) and figures/ (SVG). An interrupted run resumes where it stopped. The terminal shows the findings.
    With several models (--model A --model B), the page compares them; each has its own report in a folder of its name.
    """
    chosen = _chosen(option)
    out = Path("report") if out is None else out
    from unembed.reports import PAGE, reopen, summary, write
    from unembed.results import visible

    if render:
        made = reopen(out)
        write(made, out)
    else:
        if trigger_corpus is not None:
            chosen = {"trigger_corpus": trigger_corpus, **chosen}
        made = _made(name, corpus, detokenize, moses, index, out, chosen, opening.each(), seed)
    if output.as_json:
        write_json(made.to_dict())
    else:
        show(lambda _: _verdicts(made) or summary(made), plain=output.plain)
    print(f"wrote {visible(str(out / PAGE), prose=True)}", file=sys.stderr)


def _made(
    name: str,
    corpus: str | None,
    detokenize: bool | None,
    moses: bool,
    index: Path | None,
    out: Path,
    chosen: dict[str, Any],
    models: list[Opening],
    seed: int,
) -> Report:
    import unembed
    from unembed.reports import compared, find, prepared, write

    find(name)
    if index is not None and len(models) > 1:
        raise InvalidInput(
            f"--index {index}", why="an index is of one model", instead="Give one --model, or a --corpus"
        )
    if index is not None:
        chosen = {"index": str(index), **chosen}

    def of(opening: Opening, folder: Path, **more: Any) -> Report:
        note, line = _progress(opening.model if len(models) > 1 else "")
        given: dict[str, Any] = {"detokenize": detokenize, "moses": moses, "seed": seed, "progress": note, **more}
        made = unembed.report(name, opening.open(seed), corpus, folder, **given, **chosen)
        line.end()
        return made

    if len(models) == 1:
        return of(models[0], out)
    prepared(out)
    folders = {one.model: out / one.model.strip("/.").replace("/", "--") for one in models}
    by_option = {one.model: of(one, folders[one.model], resume=True) for one in models}
    by_name = {report.provenance.model: report for report in by_option.values()}
    made = compared(by_name if len(by_name) == len(models) else by_option)
    write(made, out)
    return made


def _verdicts(made: Report) -> Any:
    """Return the verdicts of several models as a table that rich can print; None for the report of one model."""
    from unembed.reports import VERDICTS

    if VERDICTS not in made.exhibits:
        return None
    from rich import box
    from rich.table import Table

    from unembed.results import visible_rich

    claim, *models = made[VERDICTS].column_names
    grid = Table("claim", *models, title=made.title, box=box.SIMPLE_HEAD, title_justify="left")
    for row in made[VERDICTS].rows():
        grid.add_row(*(visible_rich(str(row[name]), prose=True) for name in (claim, *models)))
    return grid


def _chosen(given: list[str] | None) -> dict[str, Any]:
    """Parse NAME=VALUE pairs; numbers, true and false are converted to Python values.

    Raises:
        typer.BadParameter: a pair has no "=".
    """
    found: dict[str, Any] = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE, such as examples=2000", param_hint="--option")
        found[key] = _value(value)
    return found


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _progress(model: str) -> tuple[Callable[[str, int, int], None], ProgressLine]:
    """Return a function that prints progress on stderr, and its line; elsewhere than on a terminal a line a stage."""
    line, live, last = ProgressLine(minutes=True), sys.stderr.isatty(), [""]

    def note(what: str, done: int, total: int) -> None:
        named = f"{model}: {what}" if model else what
        if not live and what != last[0]:
            print(f"{named} ...", file=sys.stderr)
        last[0] = what
        line(named, done, total)

    return note, line

"""`unembed report`: repeat a paper's experiments on a model, and compare the results with the published ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
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
    """Options for the models to open."""

    model: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]  # the only group that opens several
        list[str] | None,
        Option(MODEL_HELP, "m"),
    ] = None

    def each(self) -> list[Opening]:
        """Return an `Opening` for each of the models."""
        others = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "model"}
        names = self.model or [os.environ.get("UNEMBED_MODEL", "wren")]
        return [Opening(model=name, **others) for name in dict.fromkeys(names)]

    def over_training(self, pattern: str) -> dict[str, Opening]:
        """Return an `Opening` for each checkpoint of the model, by the checkpoint's name, in the order of training.

        Raises:
            InvalidInput: several models or a revision are given, or the pattern matches no series of checkpoints.
        """
        from unembed.models import find_checkpoints

        one, *others = self.each()
        if others or self.revision is not None:
            given = f"--revision {self.revision}" if self.revision is not None else "several models"
            raise InvalidInput(f"--revisions with {given}", why="--revisions selects checkpoints of a single model")
        return {
            found.name: replace(one, model=found.model, revision=found.revision)
            for found in find_checkpoints(one.model, pattern, offline=self.offline)
        }


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
    revisions: Annotated[
        str | None,
        Option(
            "Repeat the report on the checkpoints of a training run whose names match this pattern, such as 'step*'. "
            "They are folders within the folder --model, or branches and tags of --model on the Hugging Face hub, and "
            "their names end with a number of steps or tokens.",
            metavar="PATTERN",
        ),
    ] = None,
    tokens_per_step: Annotated[
        int | None,
        Option("Number of tokens in a training step, to report training progress in tokens, not in steps.", low=1),
    ] = None,
    opening: Openings = Openings(),
    seed: Seed = 0,
    output: TextOutput = TextOutput(),
) -> None:
    """Repeat a paper's experiments on a model; write a page with its tables and figures and the published numbers.

    Triggers (text positions where a memory, an FFN neuron, fires most) come from --index, or else from the text.
    WikiText separates punctuation by spaces; for models of ordinary text this spacing is undone in the shipped text,
    unless an option says otherwise. The command writes to the folder report, or --out: report.html (self-contained),
    report.json, tables/ (Parquet, JSON) and figures/ (SVG). An interrupted run resumes where it stopped. The terminal
    shows the findings. With several models (--model A --model B), the page compares them; each has its own report in a
    folder of its name. With --revisions, the page states at which training step each finding begins to hold, and plots
    the numbers that the paper also reports over training; only the last checkpoint is compared with random weights.
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
        series = None if revisions is None else opening.over_training(revisions)
        models = series or {one.model: one for one in opening.each()}
        reports = _reports(name, corpus, detokenize, moses, index, out, chosen, models, seed, series=series is not None)
        made = _combined(reports, out, tokens_per_step, series=series is not None)
    if output.as_json:
        write_json(made.to_dict())
    else:
        show(lambda _: _verdicts(made) or summary(made), plain=output.plain)
    print(f"wrote {visible(str(out / PAGE), prose=True)}", file=sys.stderr)


def _reports(
    name: str,
    corpus: str | None,
    detokenize: bool | None,
    moses: bool,
    index: Path | None,
    out: Path,
    chosen: dict[str, Any],
    models: dict[str, Opening],
    seed: int,
    *,
    series: bool,
) -> dict[str, Report]:
    """Make the report of each model, and return the reports by the model's name.

    The report of a single model is written to `out`, those of several models to subfolders of `out`.
    """
    import unembed
    from unembed.reports import find, prepared

    reads_text_alone = find(name)
    several = len(models) > 1
    if index is not None and several:
        raise InvalidInput(
            f"--index {index}",
            why="an index belongs to one model, but several are given",
            instead="Give one --model, or a --corpus in place of --index",
        )
    if index is not None and reads_text_alone:
        raise InvalidInput(
            f"--index {index}",
            why=f"the report {name} uses a text, not an index",
            instead="Give a --corpus, or leave out both options",
        )
    if index is not None:
        chosen = {"index": str(index), **chosen}
    if several:
        prepared(out)
    found: dict[str, Report] = {}
    for model, opening in models.items():
        note, line = _progress(model if several else "")
        given: dict[str, Any] = {"detokenize": detokenize, "moses": moses, "seed": seed, "progress": note, **chosen}
        if several:
            given["resume"] = True
        # The control measures a model with random weights. One control is enough for all checkpoints, because they
        # have the same architecture.
        if series and model != next(reversed(models)):
            given.setdefault("control", False)
        folder = out / model.strip("/.").replace("/", "--") if several else out
        found[model] = unembed.report(name, opening.open(seed), corpus, folder, **given)
        line.end()
    return found


def _combined(reports: dict[str, Report], out: Path, tokens_per_step: int | None, *, series: bool) -> Report:
    """Return the only model's report, or one that combines the reports of several models and is written to `out`."""
    from unembed.reports import compared, series_report, write

    if len(reports) == 1:
        return next(iter(reports.values()))
    if series:
        made = series_report(reports, tokens_per_step)
    else:
        by_name = {report.provenance.model: report for report in reports.values()}
        made = compared(by_name if len(by_name) == len(reports) else reports)
    write(made, out)
    return made


def _verdicts(made: Report) -> Any:
    """Return a table to print in the terminal; None if the report is about one model.

    If the report compares several models, the table has the verdict on each finding for each model. If it compares
    checkpoints, the table has the training step at which each finding begins to hold.
    """
    from unembed.reports import DATES, VERDICTS

    shown = next((name for name in (DATES, VERDICTS) if name in made.exhibits), None)
    if shown is None:
        return None
    from rich import box
    from rich.table import Table

    from unembed.results import visible_rich

    claim, *others = made[shown].column_names
    headers = [name.replace("_", " ") for name in others] if shown == DATES else others
    grid = Table("claim", *headers, title=made.title, box=box.SIMPLE_HEAD, title_justify="left")
    for row in made[shown].rows():
        cells = ("" if row[name] is None else row[name] for name in (claim, *others))
        grid.add_row(*(visible_rich(f"{cell:,}" if isinstance(cell, int) else cell, prose=True) for cell in cells))
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
    """Return a function that reports progress on stderr, and the `ProgressLine` that it uses.

    If stderr is not a terminal, the function prints a line at the start of each stage, and then one every minute.
    """
    line, live, last = ProgressLine(minutes=True), sys.stderr.isatty(), [""]

    def note(what: str, done: int, total: int) -> None:
        named = f"{model}: {what}" if model else what
        if not live and what != last[0]:
            print(f"{named} ...", file=sys.stderr)
        last[0] = what
        line(named, done, total)

    return note, line

"""`unembed report`: repeat a paper's experiments on a model, and compare the results with the published ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unembed.cli.command import command
from unembed.cli.option_groups import Opening, TextOutput
from unembed.cli.output import show, write_json
from unembed.options import Corpus, IndexFolder, Option, Out, Seed

if TYPE_CHECKING:
    from unembed.reports import Report


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
    render: Annotated[bool, Option("Only write the page again from the saved tables, without a model.")] = False,
    opening: Opening = Opening(),
    seed: Seed = 0,
    output: TextOutput = TextOutput(),
) -> None:
    """Repeat a paper's experiments on a model; write a page with its tables and figures and the published numbers.

    Triggers (text positions where a memory, an FFN neuron, fires most) come from --index, or else from the text.
    WikiText separates punctuation by spaces; for models of ordinary text this spacing is undone in the shipped text,
    unless an option says otherwise.
    The command writes to the folder report, or --out: report.html (self-contained), report.json, tables/ (Parquet,
    JSON) and figures/ (SVG). An interrupted run resumes where it stopped. The terminal shows the findings.
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
        made = _made(name, corpus, detokenize, moses, index, out, chosen, opening, seed)
    if output.as_json:
        write_json(made.to_dict())
    else:
        show(lambda _: summary(made), plain=output.plain)
    print(f"wrote {visible(str(out / PAGE), prose=True)}", file=sys.stderr)


def _made(
    name: str,
    corpus: str | None,
    detokenize: bool | None,
    moses: bool,
    index: Path | None,
    out: Path,
    chosen: dict[str, Any],
    opening: Opening,
    seed: int,
) -> Report:
    import unembed
    from unembed.reports import find

    find(name)
    lm = opening.open(seed)
    if index is not None:
        chosen = {"index": str(index), **chosen}
    return unembed.report(
        name, lm, corpus, out, detokenize=detokenize, moses=moses, seed=seed, progress=_progress(), **chosen
    )


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


def _progress() -> Callable[[str, int, int], None]:
    """Return a function that prints progress on stderr: a line for each stage, updated in place on a terminal."""
    shown: dict[str, Any] = {"what": "", "at": 0.0}
    live = sys.stderr.isatty()

    def note(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != shown["what"]:
            if shown["what"] and live:
                print(file=sys.stderr)
            shown["what"] = what
            if not live:
                print(f"{what} ...", file=sys.stderr)
        elif not live or (now - shown["at"] < 0.1 and done < total):
            return
        shown["at"] = now
        if live:
            print(f"\r{what} {done:,} of {total:,}\x1b[K", end="" if done < total else "\n", file=sys.stderr)

    return note

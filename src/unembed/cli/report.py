"""`unembed report`: a paper's experiments on a model, each number next to the published one."""

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
    name: Annotated[str, Option("geva2021, geva2022 or elhage2021.")],
    corpus: Corpus = None,
    index: IndexFolder = None,
    out: Out = None,
    trigger_corpus: Annotated[
        str | None, Option("Take triggers from this text, examples from --corpus (geva2021).")
    ] = None,
    detokenize: Annotated[bool | None, Option("Undo WikiText's spacing.", off="--as-written")] = None,
    moses: Annotated[
        bool, Option("Split words as Moses does, as the papers' code did for WikiLM (needs sacremoses).")
    ] = False,
    option: Annotated[list[str] | None, Option("An option of the study; repeatable.", metavar="NAME=VALUE")] = None,
    render: Annotated[bool, Option("Only redraw the page from the saved tables, without a model.")] = False,
    opening: Opening = Opening(),
    seed: Seed = 0,
    output: TextOutput = TextOutput(),
) -> None:
    """Run a paper's experiments on a model; write a page with every table and figure next to the published numbers.

    Triggers are taken from --index where it is given, else found in the text. WikiText's spacing is undone in the
    shipped text for models of ordinary text, unless an option says otherwise.
    Writes into the folder report, or --out: report.html (self-contained), report.json, tables/ (Parquet, JSON) and
    figures/ (SVG). An interrupted run resumes where it stopped. Findings go to the terminal.
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
    """Read NAME=VALUE pairs; whole numbers, numbers, true and false are converted.

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
    """Return a function that writes one line on stderr for each stage; on a terminal it is updated in place."""
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

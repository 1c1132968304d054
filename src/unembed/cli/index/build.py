"""`unembed index build`: what an index contains, and its cost, printed first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from unembed.cli import options
from unembed.cli.option_groups import Opening, grouped

_CORPUS, _SWEEP = "Corpus", "Sweep"


@grouped
def build(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="A new folder; default: a folder in the cache, where other commands find it.",
            show_default=False,
        ),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            "--corpus",
            "-c",
            help="File, folder or pattern; default: the shipped WikiText sample.",
            show_default=False,
            rich_help_panel=_CORPUS,
        ),
    ] = None,
    segmentation: Annotated[
        Literal["sentences", "windows"],
        typer.Option(help="Split documents into sentences or overlapping windows.", rich_help_panel=_CORPUS),
    ] = "sentences",
    window: Annotated[
        int | None,
        typer.Option(min=2, help="Longest window, in tokens.", show_default=False, rich_help_panel=_CORPUS),
    ] = None,
    column: Annotated[
        str, typer.Option(help="Field that contains the text, in JSONL or Parquet.", rich_help_panel=_CORPUS)
    ] = "text",
    errors: Annotated[
        Literal["strict", "replace", "ignore"],
        typer.Option(help="What to do with bytes that are not UTF-8.", rich_help_panel=_CORPUS),
    ] = "strict",
    detokenize: Annotated[
        bool, typer.Option("--detokenize", help="Undo WikiText's spacing.", rich_help_panel=_CORPUS)
    ] = False,
    max_documents: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after this many documents.", show_default=False, rich_help_panel=_CORPUS),
    ] = None,
    layer: Annotated[
        list[int] | None,
        typer.Option(
            "--layer",
            "-l",
            help="Only the memories (FFN neurons) of this layer; repeatable.",
            show_default=False,
            rich_help_panel=_SWEEP,
        ),
    ] = None,
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="Triggers per key.", rich_help_panel=_SWEEP)] = 25,
    top_tokens: Annotated[int, typer.Option(min=1, help="Tokens per value.", rich_help_panel=_SWEEP)] = 30,
    poles: Annotated[
        Literal["auto", "positive", "both"],
        typer.Option(
            help="Signs of coefficients: positive, or both; auto: both in gated layers.",
            rich_help_panel=_SWEEP,
        ),
    ] = "auto",
    min_prefix: Annotated[
        int, typer.Option(min=0, help="Minimum number of tokens in a trigger.", rich_help_panel=_SWEEP)
    ] = 0,
    skip_first: Annotated[
        bool, typer.Option("--skip-first", help="Exclude the first position of each segment.", rich_help_panel=_SWEEP)
    ] = False,
    per_document: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of triggers of a key from one document.",
            show_default=False,
            rich_help_panel=_SWEEP,
        ),
    ] = None,
    distinct: Annotated[
        bool, typer.Option("--distinct", help="Store equal prefixes of a key only once.", rich_help_panel=_SWEEP)
    ] = False,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Run in this process or on a Ray cluster.", rich_help_panel=_SWEEP)
    ] = "local",
    fast: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(
            help="A faster pass, not bit for bit the model's own; the index records the difference.",
            show_default=False,
            rich_help_panel=_SWEEP,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the estimated cost.")] = False,
    opening: Opening = Opening(),
    as_json: options.Json = False,
) -> None:
    """Build an index, resume an interrupted build, or repair a damaged one.

    Prints the estimated cost first, unless the index is already complete. After an interruption, the same command
    resumes the build.
    """
    import sys

    import unembed
    from unembed.cli.index.view import Report, deliver, deliver_status, in_words, is_complete
    from unembed.cli.stored_index import record_index
    from unembed.index import IndexSettings, check_folder

    read = unembed.open_corpus(
        corpus, segmentation=segmentation, window=window, column=column, errors=errors, detokenize=detokenize,
        max_documents=max_documents,
    )  # fmt: skip
    settings = IndexSettings(
        top, top_tokens, poles, min_prefix=min_prefix, skip_first=skip_first, per_document=per_document,
        distinct=distinct, fast=fast, layers=None if layer is None else tuple(layer),
    )  # fmt: skip
    if out is not None:
        check_folder(out, read, settings)
    lm = opening.open()
    if out is None:
        from unembed.index import cached_path

        out = cached_path(lm, read)
    if dry_run or not is_complete(out):
        cost = unembed.Index.estimate(lm, read, settings=settings)
        print(in_words(cost, lm.name), file=sys.stderr)
        if dry_run:
            deliver({"schema": "unembed.index.estimate/1", **cost.to_dict()}, as_json, lambda: None)
            return
    report = Report()
    index = unembed.Index.build(lm, read, out, engine=engine, settings=settings, progress=report)
    report.end()
    record_index(opening, lm, index)
    deliver_status(index, as_json)

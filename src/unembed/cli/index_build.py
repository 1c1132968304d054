"""`unembed index build`: the options of an index; prints the estimated cost, then builds the index."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from unembed.analyses import listings
from unembed.cli.command import command
from unembed.cli.option_groups import Json, Opening, Output
from unembed.cli.output import write_json
from unembed.cli.progress import duration
from unembed.options import Corpus, Layers, Option, Out
from unembed.results import bytes_in_words, visible

if TYPE_CHECKING:
    from unembed.index import Estimate


@command("index build", "unembed index build --corpus mine.jsonl --out mine.index")
def build(
    out: Out = None,
    corpus: Corpus = None,
    segmentation: Annotated[
        Literal["sentences", "windows"], Option("Split documents into sentences or overlapping windows.")
    ] = "sentences",
    window: Annotated[int | None, Option("Number of tokens in a window.", low=2)] = None,
    column: Annotated[str, Option("Name of the field that contains the text, in JSONL or Parquet files.")] = "text",
    errors: Annotated[
        Literal["strict", "replace", "ignore"], Option("What to do with bytes that are not UTF-8.")
    ] = "strict",
    detokenize: Annotated[bool, Option("Undo WikiText's spacing of punctuation.")] = False,
    max_documents: Annotated[int | None, Option("Stop after this many documents.", low=1)] = None,
    layers: Layers = None,
    triggers: Annotated[
        int,
        Option(
            "Number of triggers to store for each memory (FFN neuron): the text positions where it fires most.",
            low=1,
            aliases=("--top", "-k"),
            name="triggers-per-key",
        ),
    ] = 25,
    top_tokens: Annotated[
        int, Option("Number of tokens to use for each memory (FFN neuron): those that it promotes most.", low=1)
    ] = 30,
    poles: Annotated[
        Literal["auto", "positive", "both"],
        Option(
            "Store triggers with positive coefficients only, or with both signs; auto: both signs in gated layers, "
            "positive ones only in other layers."
        ),
    ] = "auto",
    min_prefix: Annotated[
        int, Option("Minimum number of tokens in a trigger's text, which ends where the memory fires.", low=0)
    ] = 0,
    skip_first: Annotated[bool, Option("Skip the first position of each sentence or window.")] = False,
    per_document: Annotated[
        int | None, Option("Maximum number of triggers of a memory from one document.", low=1)
    ] = None,
    distinct: Annotated[bool, Option("Store equal texts only once for each memory.")] = False,
    engine: Annotated[Literal["local", "ray"], Option("Run in this process or on a Ray cluster.")] = "local",
    fast: Annotated[
        Literal["float32", "bfloat16"] | None,
        Option("Run faster, less exact forward passes; the index records how much coefficients change."),
    ] = None,
    dry_run: Annotated[bool, Option("Only print the estimated cost.")] = False,
    opening: Opening = Opening(),
    as_json: Json = False,
) -> None:
    """Build an index, resume an interrupted build, or repair a damaged one.

    Without --out, the index is written to the cache folder, where other commands find it. The estimated cost is printed
    first, unless the index is already complete. After an interruption, the same command resumes the build.
    """
    import unembed
    from unembed.cli.answer import deliver
    from unembed.cli.progress import ProgressLine
    from unembed.cli.stored_index import record_index
    from unembed.index import IndexSettings, check_folder

    read = unembed.open_corpus(
        corpus, segmentation=segmentation, window=window, column=column, errors=errors, detokenize=detokenize,
        max_documents=max_documents,
    )  # fmt: skip
    settings = IndexSettings(
        triggers, top_tokens, poles, min_prefix=min_prefix, skip_first=skip_first, per_document=per_document,
        distinct=distinct, fast=fast, layers=None if layers is None else tuple(layers),
    )  # fmt: skip
    if out is not None:
        check_folder(out, read, settings)
    lm = opening.open()
    if out is None:
        from unembed.index import cached_path

        out = cached_path(lm, read)
    if dry_run or not _is_complete(out):
        cost = unembed.Index.estimate(lm, read, settings=settings)
        print(in_words(cost, lm.name), file=sys.stderr)
        if dry_run:
            if as_json:
                write_json({"schema": "unembed.index.estimate/1", **cost.to_dict()})
            return
    report = ProgressLine()
    index = unembed.Index.build(lm, read, out, engine=engine, settings=settings, progress=report)
    report.end()
    record_index(opening, lm, index)
    status = next(one for one in listings() if one.name == "index status")
    deliver(status, {}, status.load().function(index), Output(as_json=as_json))


def in_words(cost: Estimate, model: str) -> str:
    """Return an estimate of the cost as one line of text."""
    about = "" if cost.is_exact else "about "
    duration_text = duration(cost.seconds)
    if cost.seconds_busy > 1.3 * cost.seconds:
        duration_text += f" ({duration(cost.seconds_busy)} if the machine stays as busy as now)"
    return (
        f"{visible(model, prose=True)}: {cost.keys:,} keys over {about}{cost.tokens:,} tokens; "
        f"about {duration_text}, {bytes_in_words(cost.bytes)} on disk, {bytes_in_words(cost.memory)} of lists in memory"
    )


def _is_complete(folder: Path) -> bool:
    """Return True if the build of the index in a folder is complete; this does not check for damage."""
    import unembed
    from unembed.errors import IndexFault

    try:
        return unembed.Index.open(folder, partial=True).manifest.state == "complete"
    except IndexFault:
        return False

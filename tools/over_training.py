"""The page `docs/over-training.md`: when published findings begin to hold in two short trainings.

python -m tools.over_training FOLDER... --copies SERIES TEXT

FOLDER are of finished `unembed report --revisions`; SERIES is that of attn-2l's checkpoints.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import Any

from torch.nn.functional import cross_entropy

import unembed
from unembed.document.files import reopen
from unembed.document.intervals import Measured, mean_of
from unembed.document.model import Exhibit, Report
from unembed.errors import UnembedError, reading_fault
from unembed.language_model import LanguageModel
from unembed.models.checkpoints import find_checkpoints
from unembed.reports import DATES
from unembed.results import format_number

PAGE = Path(__file__).parents[1] / "docs/over-training.md"
INDUCTION = "largest attention of a head to what followed, on repeated tokens"
RECURRING = "loss of next tokens that occurred earlier in the window"
PERIOD = 30
"""Tokens after which the report's test repeats. No row of the training repeats after as many (see its recipe)."""
COPIED = f"loss of the second copy of {PERIOD} tokens of text"
FALL = "its fall, nats per doubling of the text read"
SHOWN = {
    "elhage2021": (INDUCTION, RECURRING, "loss of new next tokens"),
    "geva2021": (
        "keys with at least one pattern",
        "prefixes in at least one pattern",
        "the same in sets of random prefixes",
        "agreement rate, last layer",
        "of all values, with an agreeing trigger",
    ),
}
"""The numbers that the page shows at each checkpoint, by study."""
_COMMANDS = {
    "elhage2021": (
        "python -m tools.train_models attn-2l --checkpoints 20 --no-compile --corpus corpus --out models",
        "unembed report elhage2021 --model models/attn-2l-series --revisions 'step*' --tokens-per-step 2048 "
        "--dtype float32 --corpus articles.txt --detokenize --option sequences=20 --option tokens=1000 "
        "--option windows=128 --out folder",
    ),
    "geva2021": (
        "python -m tools.train_wikilm --checkpoints 20 --layers 4 --width 128 --steps 1200 --bfloat16 --out models",
        "unembed report geva2021 --model models/wikilm-mini-4x128 --revisions 'step*' --tokens-per-step 2048 "
        "--corpus articles.txt --as-written --option examples=300 --option pattern_keys=6 --option perturbed_keys=2 "
        "--option perturbed_triggers=10 --option compositions=20 --out folder",
    ),
}
_TEXTS = {
    "elhage2021": "A model of two layers, attention alone, with four heads a layer. `corpus` holds 15 MB of articles, "
    "books and stories. Rows of 64 tokens repeat themselves after 16 to 26 tokens: up to 2,457,600 tokens, half of "
    "the training, all of them, then one in four. The report's test repeats after 30, and what followed the earlier "
    "occurrence is 29 tokens back there. No row of the training has it at that distance, so a head that attends at the "
    "distances of the training does not score.\n",
    "geva2021": "A model of four layers, each of 512 memories (FFN neurons), trained on the shipped "
    "sample of WikiText; one line in 80 is held back.\n",
}
_INTRODUCTION = """# When do findings begin to hold?

`unembed report --revisions` repeats a report on the checkpoints of a training, and dates each finding. This page is
made from short trainings of models smaller than those in the package, by the commands that each section gives. The
reports read the first eight articles of the shipped sample of WikiText:

    awk '/^ = [^=]/{n++} n<9' src/unembed/corpus/shipped/wikitext/valid.txt > articles.txt
    python -m tools.over_training FOLDER FOLDER --copies models/attn-2l-series articles.txt    # after both reports

A finding begins to hold after the first number of tokens, the last checkpoint at which it does not hold, and at the
second number at the latest; from there on it holds at every checkpoint. Without a first number it holds, or is
inconclusive, from the first checkpoint on. What random weights pass too counts as not holding. Samples are small, so
many findings are inconclusive at many checkpoints. Intervals are 95 %.
"""
_END = """## A training on the hub

Where `--model` is a repository on the Hugging Face hub, its branches and tags are the checkpoints. For the 154
checkpoints of a Pythia model (not run here), which read 2,097,152 tokens at a step:

    unembed report geva2021 --model EleutherAI/pythia-160m --revisions 'step*' --tokens-per-step 2097152 --out folder

A report that is stopped continues with the checkpoint that it was at. A pattern such as `'step*0000'` chooses fewer.
"""


def page(reports: Sequence[Report], copies: Sequence[Measured] = ()) -> str:
    """Return the page.

    Args:
        copies: of `second_copies`, at each checkpoint of the report on Elhage et al.
    """
    parts = (_of(made, copies if made.name == "elhage2021" else ()) for made in reports)
    return "\n".join((_INTRODUCTION, *parts, _END))


def second_copies(lm: LanguageModel, text: str, passages: int = 200, width: int = PERIOD) -> Measured:
    """Return the loss, in nats per token, on the second copies of a text's first passages, each given twice."""
    ids = lm.encode(text)[0]
    twice = ids[: min(passages, len(ids) // width) * width].reshape(-1, width).repeat(1, 2)
    logits = lm.run(twice).logits[:, width:-1].float()
    losses = cross_entropy(logits.transpose(1, 2), twice[:, width + 1 :], reduction="none")
    return mean_of(losses.mean(dim=1).tolist())


def _of(made: Report, copies: Sequence[Measured]) -> str:
    dates = made[DATES]
    unit = dates.column_names[1].removesuffix("_after")
    began, never = [], []
    for row in dates.rows():
        first, by = row[f"{unit}_after"], row[f"{unit}_at_most"]
        if by is None:
            never.append(row["claim_text"])
        else:
            began.append((by, f"| {row['claim_text']} | {'' if first is None else f'{first:,}'} | {by:,} |"))
    lines = [
        f"## {made.name}", "", made.source.partition(" Their model")[0], "",
        *(f"    {line}" for line in _COMMANDS[made.name]), "",
        _TEXTS[made.name],
        f"| finding | {unit} after | {unit} at most |", "|---|---:|---:|", *(line for _, line in sorted(began)), "",
        f"At the last checkpoint, the other {len(never)} findings do not hold, are inconclusive, or hold for random "
        "weights too.", "", *numbers(made, unit, copies), "",
    ]  # fmt: skip
    return "\n".join(lines)


def numbers(made: Report, unit: str, copies: Sequence[Measured]) -> Iterator[str]:
    """Yield the lines of the table of numbers at each checkpoint."""
    found: dict[str, tuple[Exhibit, Mapping[str, list[Any]]]] = {}
    for section in made.sections:
        for exhibit in section.exhibits:
            columns = {name: list(exhibit.table[name]) for name in exhibit.table.column_names}
            found |= {name: (exhibit, columns) for name in SHOWN[made.name] if name in columns}
    names = [name for name in SHOWN[made.name] if name in found]
    counts = next(columns[unit] for _, columns in found.values())
    falls = fall_per_doubling(counts, [one.value for one in copies]) if copies else []
    heads = [*names, *((COPIED, FALL) if copies else ())]
    yield f"| {unit} | {' | '.join(heads)} |"
    yield f"|---:|{'---:|' * len(heads)}"
    for n, count in enumerate(counts):
        cells = [_cell(*found[name], name, n) for name in names]
        if copies:
            value, low, high = (format_number(x) for x in (copies[n].value, copies[n].low, copies[n].high))
            cells += [f"{value} \\[{low}, {high}\\]", format_number(falls[n])]
        yield f"| {count:,} | {' | '.join(cells)} |"
    if copies:
        n, fall = max(((n, fall) for n, fall in enumerate(falls) if fall is not None), key=lambda one: one[1])
        yield (
            f"\nThe loss of second copies falls fastest between {counts[n - 1]:,} and {counts[n]:,} {unit}: by "
            f"{format_number(fall)} nats per doubling."
        )


def fall_per_doubling(counts: Sequence[int], losses: Sequence[float]) -> list[float | None]:
    """Return by how much the loss fell since the checkpoint before, for each doubling of the text read."""
    pairs = pairwise(zip(counts, losses, strict=True))
    return [None, *((before - after) / log2(n / m) for (m, before), (n, after) in pairs)]


def _cell(exhibit: Exhibit, columns: Mapping[str, list[Any]], name: str, n: int) -> str:
    value, low, high = (columns[f"{name}{end}"][n] for end in ("", "_low", "_high"))
    if value is None:
        return ""
    share = name in exhibit.percent
    value, low, high = (format_number(100 * x if share else x) for x in (value, low, high))
    return f"{value}{' %' if share else ''} \\[{low}, {high}\\]"


def main() -> None:
    """Write the page from the folders of the reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--copies", nargs=2, type=Path, metavar=("SERIES", "TEXT"), required=True)
    given = parser.parse_args()
    series, text = given.copies
    try:
        reports = [reopen(folder) for folder in given.folders]
        words = text.read_text(encoding="utf-8")
        models = (unembed.load(one.model, dtype="float32") for one in find_checkpoints(str(series), "step*"))
        copies = [second_copies(lm, words) for lm in models]
    except UnembedError as fault:
        parser.exit(1, f"{fault}\n")
    except (OSError, UnicodeDecodeError) as fault:
        parser.exit(1, f"cannot read {text}: {reading_fault(fault)}\n")
    PAGE.write_text(page(reports, copies), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Show an index in a terminal: passages with the trigger marked, costs and states in words."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unembed.cli.bars import PROMOTES, Scale, signed
from unembed.cli.output import show
from unembed.cli.progress import duration
from unembed.results import visible, visible_rich, whole_character

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from unembed import Index
    from unembed.cli.option_groups import Output
    from unembed.index import Estimate
    from unembed.results import Table

_MARK = "bold"


def deliver(content: dict[str, Any], as_json: bool, draw: Callable[[], None]) -> None:
    """Write JSON on stdout, or what `draw` prints."""
    if as_json:
        json.dump(content, sys.stdout, ensure_ascii=False, allow_nan=False)
        print()
    else:
        draw()


def deliver_passages(found: Table, value: Table | None, output: Output) -> None:
    """Write triggers in the requested forms; in a terminal as passages."""
    if output.for_terminal:
        show(lambda width: draw_passages(found, value, width, plain=output.plain), plain=output.plain)
    else:
        output.deliver(found)


def tokens_line(what: str, tokens: Sequence[str], width: int) -> Text:
    """Write tokens in one line, after a word that says what they are."""
    from rich.text import Text

    line = Text(f"{what}  ", style="dim")
    for token in tokens:
        line.append_text(visible_rich(token)).append(" ")
    line.truncate(width, overflow="ellipsis")
    return line


def draw_passages(
    found: Table, value: Table | None, width: int, *, plain: bool, signature: bool = True
) -> RenderableType:
    """Draw one line for each trigger: coefficient and bar, the end of the prefix, the marked token, the next token.

    Args:
        found: the passages.
        value: tokens that the memory promotes at the sign of these coefficients.
        signature: whether a last line says what the passages come from.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows = list(found.rows())
    parts: list[Any] = [Text(found.title, style="bold")]
    if value is not None:
        parts.append(tokens_line("value promotes", value.columns["token"], width))
    if not rows:
        return Group(*parts, Text("none", style="dim"))
    named = "layer" in rows[0]
    cells = 0 if plain else 8 if width < 100 else 12
    scale = Scale.of([abs(row["coefficient"]) for row in rows], cells) if cells else None
    has_strength = "strength" in rows[0]
    room = max(
        20, width - 9 - (cells + 2 if cells else 0) - (11 if named else 0) - (10 if has_strength else 0) - 16 - 4
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    if named:
        table.add_column("memory", no_wrap=True)
    if has_strength:
        table.add_column("strength", justify="right", no_wrap=True)
    table.add_column("m", justify="right", no_wrap=True)
    if scale is not None:
        table.add_column("", no_wrap=True)
    table.add_column("trigger", no_wrap=True, justify="right")
    table.add_column("next", no_wrap=True)
    for row in rows:
        line: list[Any] = [Text(row.get("memory") or f"L{row['layer']}M{row['index']}")] if named else []
        if has_strength:
            line.append(Text(f"{row['strength']:.2f}"))
        line.append(signed(row["coefficient"]))
        if scale is not None:
            line.append(Text(scale.right(abs(row["coefficient"])), style=PROMOTES))
        following = row["next_token"]
        prefix, token = whole_character(row["prefix"], row["token"], following or "")
        line.append(passage(prefix, token, room, plain=plain))
        if following is not None:
            _, following = whole_character(row["prefix"] + row["token"], following)
        line.append(Text("end", style="dim") if following is None else _short(following, 14))
        table.add_row(*line)
    last = [visible_rich(found.provenance.line(), prose=True, style="dim")] if signature else []
    return Group(*parts, table, *last)


def passage(prefix: str, token: str, room: int, *, plain: bool) -> Text:
    """Return the end of a prefix with its trigger token marked, in at most `room` cells."""
    from rich.cells import cell_len
    from rich.text import Text

    # Brackets are added too, because without colour something must still mark the token.
    marked = Text("[", style="dim").append_text(_short(token, max(4, room // 2), "" if plain else _MARK))
    marked.append("]", style="dim")
    left = room - cell_len(marked.plain)
    # The prefix is cut before invisible characters are marked, so that a long prefix costs no more than the part shown.
    text = visible(prefix[-4 * max(left, 1) :].replace("\n", " "), prose=True)
    cut = len(prefix) > 4 * left
    while cell_len(text) > left - cut:
        text, cut = text[1:], True
    return Text("…" if cut else "", style="dim").append(text, style="").append_text(marked)


def _short(token: str, cells: int, style: str = "") -> Text:
    shown = visible_rich(token, style=style)
    shown.truncate(cells, overflow="ellipsis")
    return shown


def in_words(cost: Estimate, model: str) -> str:
    """Write an estimate as one line."""
    about = "" if cost.is_exact else "about "
    duration_text = duration(cost.seconds)
    if cost.seconds_busy > 1.3 * cost.seconds:
        duration_text += f" ({duration(cost.seconds_busy)} if the machine stays as busy as now)"
    return (
        f"{visible(model, prose=True)}: {cost.keys:,} keys over {about}{cost.tokens:,} tokens; "
        f"about {duration_text}, {size(cost.bytes)} on disk, {size(cost.memory)} of lists in memory"
    )


def is_complete(folder: Path) -> bool:
    """Tell whether a folder contains a complete index, valid or not."""
    import unembed
    from unembed.errors import IndexFault

    try:
        return unembed.Index.open(folder, partial=True).manifest.state == "complete"
    except IndexFault:
        return False


def deliver_status(index: Index, as_json: bool) -> None:
    """Show model and corpus of an index, and the progress of its build."""
    state = index.status()
    deliver({"schema": "unembed.index.status/1", **state}, as_json, lambda: print("\n".join(status_lines(state))))


def status_lines(state: dict[str, Any]) -> list[str]:
    """Write a status for people."""
    facts, provenance = state["facts"], state["provenance"]
    counts = [f"{facts[name]:,} {name}" for name in ("tokens", "segments", "documents") if name in facts]
    parts = [f"{name} {size(number)}" for name, number in state["parts"].items()]
    lines = [
        f"{state['state']}: {visible(state['path'], prose=True)}",
        f"model   {visible(provenance['model'], prose=True)}, {provenance['dtype']}, weights {state['weights'][:12]}",
        f"corpus  {visible(str(provenance['notes'].get('corpus_name')), prose=True)} {provenance['corpus']}",
        f"keys    {state['keys']:,} in {state['layers']} layers, top {state['settings']['top']} triggers, "
        f"{', '.join(state['poles']) or 'none yet'}",
        f"disk    {size(state['bytes'])}: {', '.join(parts)}",
    ]
    if fast := provenance["notes"].get("fast"):
        change = provenance["notes"]["largest_change"]
        lines.insert(2, f"        swept fast ({fast}): coefficients changed by at most {change:.2g} of the largest")
    if counts:
        lines.insert(-2, f"        {', '.join(counts)}")
    if state["labels"]:
        lines.append(f"labels  {state['labels']:,}")
    if state["truth"]:
        lines.append(f"truth   {state['truth']}")
    return lines


def verify_lines(index: Index, found: Table) -> list[str]:
    """List damaged files, or say that there are none."""
    rows = list(found.rows())
    damaged = [f"{row['file']}: {row['fault']}" for row in rows if row["fault"] is not None]
    if damaged:
        return [*damaged, f"{len(damaged)} of {len(rows)} files damaged; the same build repairs them"]
    unfinished = "" if index.manifest.state == "complete" else "; the build is not finished"
    return [f"{len(rows)} files, all sound{unfinished}"]


def size(count: int | float) -> str:
    """Format a number of bytes with units of a thousand."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if count >= 10 or unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError

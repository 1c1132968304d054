"""Draw in a terminal the heads, memories (FFN neurons) and components that contribute most to a prediction."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from unembed.cli.bars import Scale
from unembed.cli.passages import passage
from unembed.cli.trace.tokens import (
    ACCENT,
    TOKEN_CELLS,
    bar,
    explained,
    question,
    signed_text,
    sources_read,
    token_text,
)
from unembed.results import (
    decimals_of,
    format_cell,
    format_error,
    format_probability,
    format_signed,
    visible_rich,
)
from unembed.trace import AttributionView, HeadEffectsView, HeadEffectView, MemoriesView, SubUpdateView, TraceView

_ALWAYS_ON_SHOWN = 6
_WRITERS = 12
"""Number of components that an attribution by component shows; the others are summed in one row."""
_ROOM_FOR_WORDS = 24
"""A list of suppressed tokens begins with the word "suppresses" if it is at least this wide (in characters), else with
an arrow."""
_MOVES = "raises, lowers"
"""Heading of the column of tokens whose probability a component raises or lowers most, measured by ablation."""
_NARROW = 72
"""Number of columns below which tables have no bars."""


def draw_heads(view: TraceView, heads: HeadEffectsView, width: int, *, plain: bool = False) -> RenderableType:
    """Draw the heads with the largest effects: their source tokens, and the target's probability without the head."""
    rows = heads.rows
    cells_of_bar = 0 if plain or width < _NARROW else 8 if width < 100 else 16
    scale = Scale.of([row.effect for row in rows], cells_of_bar or 8)
    measured = any(row.without is not None for row in rows)
    places = decimals_of(row.effect for row in rows)
    effects = [signed_text(row.effect, places) for row in rows]
    room = width - 2 * 2 - _widest([row.name for row in rows], 4) - _widest([one.plain for one in effects], 6)
    room -= (cells_of_bar + 3 if cells_of_bar else 0) + (9 if measured else 0)
    sources = [_sources(view, row, 10 if width < _NARROW else TOKEN_CELLS) for row in rows]
    first = _widest([entries[0].plain for entries in sources if entries], 5)
    limit = max(first, room - (len(_MOVES) + 2 if measured else 0))
    reads = [_joined(entries, limit) for entries in sources]
    of_moved = room - _widest([one.plain for one in reads], 5) - 2
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    table.add_column("head", no_wrap=True)
    table.add_column("effect", justify="right", no_wrap=True)
    if cells_of_bar:
        table.add_column(scale.left(0.0) + "│", no_wrap=True)
    if measured:
        table.add_column("without", justify="right", no_wrap=True)
    table.add_column("reads", no_wrap=True)
    if measured:
        table.add_column(_moves(of_moved), no_wrap=True, overflow="ellipsis", max_width=of_moved)
    for row, effect, read in zip(rows, effects, reads, strict=True):
        cells: list[RenderableType] = [row.name, effect]
        cells += [bar(row.effect, scale)] if cells_of_bar else []
        cells += [_without(row.without)] if measured else []
        tokens = [_moved(row, row.effect < 0, of_moved, plain)] if measured else []
        table.add_row(*cells, read, *tokens)
    title = Text.assemble(("Heads behind ", "bold"), question(view))
    lines = _columns(view, measured)
    if any(sources):
        lines += "\nreads: tokens its effect comes from, attention to each"
        numbered = [which for row in rows for _, which in sources_read(view, row) if which.startswith(" (")]
        lines += f";{numbered[0]}: position, from 0" if numbered else ""
    rest = Text(f"{heads.others:,} other heads together {format_signed(heads.others_effect)}", style="dim")
    return Group(title, Text(lines, style="dim"), table, rest)


def _widest(texts: Sequence[str], least: int) -> int:
    return max([least, *map(cell_len, texts)])


def _sources(view: TraceView, row: HeadEffectView, cells: int) -> list[Text]:
    """Return an entry for each source token that contributes most to a head's effect: the token, and the attention."""
    return [
        token_text(source.token, cells=cells).append(f"{which} {format_probability(source.weight)}", style="dim")
        for source, which in sources_read(view, row)
    ]


def _joined(entries: Sequence[Text], room: int) -> Text:
    """Return the first entries, as many as fit, at least one."""
    shown = Text()
    for entry in entries:
        if shown and shown.cell_len + 2 + entry.cell_len > room:
            break
        shown.append("  " if shown else "").append_text(entry)
    return shown


def _columns(view: TraceView, measured: bool) -> str:
    """Return the explanation of the columns `effect` and `without`."""
    effect = f"effect: direct effect on {explained(view)}"
    if not measured:
        return f"{effect}, largest first"
    own = next((one.probability for one in view.prediction if one.id == view.target.id), None)
    now = "" if own is None else f" ({format_probability(own)} with it)"
    return f"{effect}\nwithout: probability of {token_text(view.target.token).plain}{now}, indirect effects included"


def _moves(room: int) -> str:
    return _MOVES if room >= len(_MOVES) else _MOVES.replace(" ", "\n")


def _without(probability: float | None) -> str:
    return "" if probability is None else format_probability(probability)


def draw_memories(view: TraceView, memories: MemoriesView, width: int, *, plain: bool = False) -> RenderableType:
    """Draw the memories with the largest effects, then one line about always-on memories, and one about all others.

    Memories that were not ablated follow in a table of their own, with the tokens that the lens reads in their values.
    """
    measured = [row for row in memories.rows if row.moved is not None]
    others = [row for row in memories.rows if row.moved is None]
    title = Text.assemble(("Memories behind ", "bold"), question(view))
    of_heads = view.heads is not None and any(row.without is not None for row in view.heads.rows) == bool(measured)
    lines = [] if of_heads else [_columns(view, bool(measured))]
    if of_heads:
        title.append(f"   effect{', without' if measured else ''}: as for heads", style="dim")
    if any(row.times_usual is not None for row in memories.rows):
        lines.append("m: coefficient; × usual: |m| over its usual size (root mean square on text)")
    parts: list[RenderableType] = [title, *(Text(line, style="dim") for line in lines)]
    if measured or not others:
        parts.append(_table(memories.rows, measured, width, plain))
    if measured and others:
        parts.append(
            Text(f"{len(others)} more, not ablated; promotes: what the lens reads in their values", style="dim")
        )
    if others:
        parts.append(_table(memories.rows, others, width, plain))
    return Group(*parts, *_apart(memories))


def _table(every: Sequence[SubUpdateView], rows: Sequence[SubUpdateView], width: int, plain: bool) -> Table:
    """Return the table of `rows`, in columns as wide as those of `every` memory that is listed."""
    has_triggers = any(row.trigger is not None for row in every)
    has_usual = any(row.times_usual is not None for row in every)
    measured = any(row.without is not None for row in rows)
    # In a narrow terminal there is no room for both a trigger and a bar; the more informative trigger is shown.
    cells_of_bar = 0 if plain or width < (100 if has_triggers else _NARROW) else 8 if width < 100 else 16
    scale = Scale.of([row.score or 0.0 for row in every], cells_of_bar or 8)
    of_m, of_effect = decimals_of(row.coefficient for row in every), decimals_of(row.score or 0.0 for row in every)
    names = _widest([row.name for row in every], 6)
    widest_m = _widest([format_signed(row.coefficient, of_m) for row in every], 1)
    room = width - (names + 2) - (widest_m + 2) - (9 if has_usual else 0) - 8
    room -= (cells_of_bar + 3 if cells_of_bar else 0) + (9 if measured else 0)
    of_trigger = round(room * 0.55) if has_triggers else 0
    room -= of_trigger + 2 if has_triggers else 0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    is_wide = width >= _NARROW  # in a narrow terminal, any column may be cut
    table.add_column("memory", no_wrap=True, min_width=names if is_wide else None)
    table.add_column("m", justify="right", no_wrap=True, min_width=widest_m if is_wide else None)
    if has_usual:
        table.add_column("× usual", justify="right", no_wrap=True)
    table.add_column("effect", justify="right", no_wrap=True)
    if cells_of_bar:
        table.add_column(scale.left(0.0) + "│", no_wrap=True)
    if measured:
        table.add_column("without", justify="right", no_wrap=True)
    header = _moves(room) if measured else "promotes (lens)" if room >= 15 else "promotes\n(lens)"
    table.add_column(header, no_wrap=True, overflow="ellipsis", max_width=max(10, room))
    if has_triggers:
        table.add_column("fires most on", no_wrap=True, justify="right", max_width=max(12, of_trigger))
    for row in rows:
        cells: list[RenderableType] = [row.name, format_signed(row.coefficient, of_m)]
        if has_usual:
            cells.append(times_usual(row))
        cells.append(signed_text(row.score or 0.0, of_effect))
        if cells_of_bar:
            cells.append(bar(row.score or 0.0, scale))
        if measured:
            cells.append(_without(row.without))
        tokens = _moved(row, row.lowers, max(10, room), plain) if measured else _promoted(row, max(10, room), plain)
        cells.append(tokens)
        if has_triggers:
            cells.append(
                ""
                if row.trigger is None
                else passage(row.trigger.prefix, row.trigger.token, max(12, of_trigger), plain=plain)
            )
        table.add_row(*cells)
    return table


def _apart(memories: MemoriesView) -> list[Text]:
    """Return a line about the memories that are active on nearly every token, and one about all unlisted ones."""
    lines: list[Text] = []
    if on := memories.always_on:
        lines.append(Text.assemble(("always on  ", "dim")))
        effects = [row.score or 0.0 for row in on]
        places = decimals_of(effects)
        for row, effect in zip(on[:_ALWAYS_ON_SHOWN], effects, strict=False):
            lines[0].append_text(Text.assemble(row.name, " ", signed_text(effect, places), "  "))
        more = f"and {len(on) - _ALWAYS_ON_SHOWN} more  " if len(on) > _ALWAYS_ON_SHOWN else ""
        lines[0].append(f"{more}together {format_signed(sum(effects), places)}", style="dim")
    rest = f"{memories.others:,} other active memories together {format_signed(memories.others_effect)}"
    return [*lines, Text(rest, style="dim")]


def _moved(row: HeadEffectView | SubUpdateView, lowers: bool, room: int, plain: bool) -> Text:
    """List the tokens whose probability a component raises (if `lowers`: lowers) most, as many as fit."""
    tokens = () if row.moved is None else row.moved.lowered if lowers else row.moved.raised
    if not tokens:
        return Text()
    verb = ("lowers" if lowers else "raises") if plain else "↓" if lowers else "↑"
    return _listed(Text(verb, style="dim"), tokens, room)


def _promoted(row: SubUpdateView, room: int, plain: bool) -> Text:
    """List the tokens that a memory promotes (or suppresses, if its effect is negative) most, as many as fit."""
    verb = "suppresses" if plain or room >= _ROOM_FOR_WORDS else "↓"
    shown = Text(verb, style="dim") if row.lowers else Text()
    return _listed(shown, row.suppressed if row.lowers else row.promoted, room)


def _listed(shown: Text, tokens: Sequence[str], room: int) -> Text:
    for n, token in enumerate(tokens):
        next_token = token_text(token)
        if n and cell_len(shown.plain) + 1 + cell_len(next_token.plain) > room:
            break
        shown.append(" " if shown else "")
        shown.append_text(next_token)
    return shown


def draw_attribution(
    attribution: AttributionView, width: int, *, plain: bool = False, everything: bool = False
) -> RenderableType:
    """Draw the contributions of components to a logit, largest first, and the sum of the others in one row.

    Args:
        everything: draw all components, in the order of the layers.
    """
    rows = attribution.rows
    if not everything and attribution.by == "component":
        rows = sorted(rows, key=lambda row: -abs(row.contribution))[:_WRITERS]
    others = attribution.others + len(attribution.rows) - len(rows)
    left_out = sum(row.contribution for row in attribution.rows) - sum(row.contribution for row in rows)
    others_contribution = attribution.others_contribution + left_out
    labels = max((cell_len(row.label) for row in rows), default=0)
    widest = max(labels, min(24, width // 3))
    scale = Scale.of([row.contribution for row in rows], max(10, min(48, width - widest - 12)))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False, show_edge=False)
    table.add_column(max_width=widest)
    table.add_column(justify="right", no_wrap=True)
    if not plain:
        table.add_column(no_wrap=True)
    places = decimals_of(row.contribution for row in rows)
    for row in rows:
        cells: list[RenderableType] = [visible_rich(row.label, prose=True), signed_text(row.contribution, places)]
        table.add_row(*cells, *([] if plain else [bar(row.contribution, scale)]))
    if attribution.always_on:
        on = attribution.always_on
        names = ", ".join(row.label.removeprefix("memory ") for row in on[:_ALWAYS_ON_SHOWN])
        more = f" and {len(on) - _ALWAYS_ON_SHOWN} more" if len(on) > _ALWAYS_ON_SHOWN else ""
        label = Text(f"always on: {names}{more}", style="dim", overflow="fold", no_wrap=False)
        table.add_row(label, signed_text(sum(row.contribution for row in on), places))
    if others:
        rest: list[RenderableType] = [
            Text(f"{others:,} others together", style="dim"),
            signed_text(others_contribution, places),
        ]
        table.add_row(*rest)
    name = token_text(attribution.token, ACCENT, cells=24)
    title = Text.assemble(("Why ", "bold"), name)
    if attribution.against is not None:
        title.append_text(Text.assemble((" rather than ", "bold"), token_text(attribution.against, cells=24)))
    what = "difference of logits" if attribution.against is not None else "logit"
    title.append(f"   {what} {format_signed(attribution.logit)}, by {attribution.by}", style="dim")
    proof = Text.assemble(
        ("sum of contributions ", "dim"),
        format_signed(attribution.total),
        (f" = {what} ", "dim"),
        format_signed(attribution.logit),
        (f"   relative error {format_error(attribution.error)}", "dim"),
    )
    return Group(title, table, proof)


def times_usual(row: SubUpdateView) -> str:
    """Write how many times as large as usual a coefficient is; empty if that is not known.

    At positions with massive activations some coefficients are over a million times as large, which says no more than
    that they are far from usual.
    """
    if row.times_usual is None:
        return ""
    return format_cell(row.times_usual, 1) if row.times_usual < 1000 else ">1,000"

"""Draw in a terminal the heads, memories (FFN neurons) and components that contribute most to a prediction."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from unembed.cli.bars import Scale
from unembed.cli.passages import passage
from unembed.cli.trace.tokens import ACCENT, bar, question, signed_text, token_text
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
_READ = 0.2
"""A source token is shown if its contribution to a head's effect is at least this share of the largest one."""


def draw_heads(view: TraceView, heads: HeadEffectsView, width: int, *, plain: bool = False) -> RenderableType:
    """Draw the heads with the largest effects: their source tokens, and the target's probability without the head."""
    rows = heads.rows
    cells_of_bar = 0 if plain else 8 if width < 100 else 16
    scale = Scale.of([row.effect for row in rows], cells_of_bar or 8)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    table.add_column("head", no_wrap=True)
    table.add_column("effect", justify="right", no_wrap=True)
    if cells_of_bar:
        table.add_column(scale.left(0.0) + "│", no_wrap=True)
    measured = any(row.without is not None for row in rows)
    if measured:
        table.add_column("without", justify="right", no_wrap=True)
    table.add_column("reads", no_wrap=True, overflow="ellipsis", max_width=max(16, width // 4))
    if measured:
        table.add_column(_MOVES, no_wrap=True, overflow="ellipsis")
    places = decimals_of(row.effect for row in rows)
    for row in rows:
        cells: list[RenderableType] = [row.name, signed_text(row.effect, places)]
        cells += [bar(row.effect, scale)] if cells_of_bar else []
        cells += [_without(row.without)] if measured else []
        moved = [_moved(row, row.effect < 0, width // 4)] if measured else []
        table.add_row(*cells, _reads(row), *moved)
    title = Text.assemble(("Heads behind ", "bold"), question(view))
    rest = Text(f"{heads.others:,} other heads together {format_signed(heads.others_effect)}", style="dim")
    return Group(title.append(f"   {_note(view, measured)}", style="dim"), table, rest)


def _reads(row: HeadEffectView) -> Text:
    """List the source tokens that contribute most to a head's effect, each with the head's attention to it."""
    shown = Text()
    least = _READ * max((abs(source.effect) for source in row.sources), default=0.0)
    for source in (one for one in row.sources if abs(one.effect) >= least):
        shown.append("  " if shown else "")
        shown.append_text(token_text(source.token)).append(f" {format_probability(source.weight)}", style="dim")
    return shown


def _note(view: TraceView, measured: bool) -> str:
    """Return the explanation of the columns of a list of heads or memories."""
    if not measured:
        return "largest effect first"
    own = next((one.probability for one in view.prediction if one.id == view.target.id), None)
    now = "" if own is None else f" ({format_probability(own)})"
    return f"effect, and {token_text(view.target.token).plain}{now} without it"


def _without(probability: float | None) -> str:
    return "" if probability is None else format_probability(probability)


def draw_memories(view: TraceView, memories: MemoriesView, width: int, *, plain: bool = False) -> RenderableType:
    """Draw the memories with the largest effects, then one line about always-on memories, and one about all others."""
    rows = memories.rows
    has_triggers = any(row.trigger is not None for row in rows)
    has_usual = any(row.times_usual is not None for row in rows)
    # In a narrow terminal there is no room for both a trigger and a bar; the more informative trigger is shown.
    cells_of_bar = 0 if plain or (has_triggers and width < 100) else 8 if width < 100 else 16
    scale = Scale.of([row.score or 0.0 for row in rows], cells_of_bar or 8)
    names = max((len(row.name) for row in rows), default=6)
    measured = any(row.without is not None for row in rows)
    room = (
        width
        - (9 if measured else 0)
        - (max(6, names) + 2 + 7 + 2 + 8 + (8 if has_usual else 0) + (cells_of_bar + 3 if cells_of_bar else 0))
    )
    of_trigger = round(room * 0.55) if has_triggers else 0
    room -= of_trigger + 2 if has_triggers else 0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    table.add_column("memory", no_wrap=True)
    table.add_column("m", justify="right", no_wrap=True)
    if has_usual:
        table.add_column("× usual", justify="right", no_wrap=True)
    table.add_column("effect", justify="right", no_wrap=True)
    if cells_of_bar:
        table.add_column(scale.left(0.0) + "│", no_wrap=True)
    if measured:
        table.add_column("without", justify="right", no_wrap=True)
    header = _MOVES if all(row.moved for row in rows) else "promotes"
    table.add_column(header, no_wrap=True, overflow="ellipsis", max_width=max(10, room))
    if has_triggers:
        table.add_column("fires most on", no_wrap=True, justify="right", max_width=max(12, of_trigger))
    of_m, of_effect = decimals_of(row.coefficient for row in rows), decimals_of(row.score or 0.0 for row in rows)
    for row in rows:
        cells: list[RenderableType] = [row.name, format_signed(row.coefficient, of_m)]
        if has_usual:
            cells.append("" if row.times_usual is None else format_cell(row.times_usual, 1))
        cells.append(signed_text(row.score or 0.0, of_effect))
        if cells_of_bar:
            cells.append(bar(row.score or 0.0, scale))
        if measured:
            cells.append(_without(row.without))
        tokens = _promoted(row, max(10, room)) if row.moved is None else _moved(row, row.lowers, max(10, room))
        cells.append(tokens)
        if has_triggers:
            cells.append(
                ""
                if row.trigger is None
                else passage(row.trigger.prefix, row.trigger.token, max(12, of_trigger), plain=plain)
            )
        table.add_row(*cells)
    title = Text.assemble(("Memories behind ", "bold"), question(view))
    return Group(title.append(f"   {_note(view, measured)}", style="dim"), table, *_apart(memories))


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


def _moved(row: HeadEffectView | SubUpdateView, lowers: bool, room: int) -> Text:
    """List the tokens whose probability a component raises (if `lowers`: lowers) most, as many as fit."""
    if row.moved is None:
        return Text()
    return _listed(Text("↓" if lowers else "↑", style="dim"), row.moved.lowered if lowers else row.moved.raised, room)


def _promoted(row: SubUpdateView, room: int) -> Text:
    """List the tokens that a memory promotes (or suppresses, if its effect is negative) most, as many as fit."""
    shown = Text("suppresses" if room >= _ROOM_FOR_WORDS else "↓", style="dim") if row.lowers else Text()
    return _listed(shown, row.suppressed if row.lowers else row.promoted, room)


def _listed(shown: Text, tokens: Sequence[str], room: int) -> Text:
    for token in tokens:
        next_token = token_text(token)
        if shown and cell_len(shown.plain) + 1 + cell_len(next_token.plain) > room:
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

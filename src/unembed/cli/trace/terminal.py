"""A trace drawn for a terminal, 60 to 160 columns wide. Pure: a view in, something rich can print out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from unembed.cli.bars import OPPOSES, PROMOTES, Scale, decimals, percent, signed
from unembed.cli.index.view import passage
from unembed.models import Candidate
from unembed.results import character_at, join_bytes, visible_rich
from unembed.trace import (
    AttributionView,
    EventView,
    LayerView,
    MemoriesView,
    SubUpdateView,
    TraceView,
    mixer_of_all,
    mixers_in_words,
)

_ACCENT = "bold green"
_TOKEN_CELLS = 16
_ALWAYS_ON_SHOWN = 6
_REMARK = 20
"""Smallest width, in columns, of the remark next to a command."""
_SIGNS = {"saturation": "◆", "elimination": "✕"}
_EVENT_STYLE = {"saturation": "bold green", "elimination": "dark_orange3"}


def draw_trace(
    view: TraceView, width: int, *, plain: bool = False, lines: int = 1, next_steps: str | None = None
) -> RenderableType:
    """Header, the layers, the findings, the memories behind the prediction, the attribution.

    Args:
        plain: no bars and signs.
        lines: tokens listed in every cell of the layers.
        next_steps: end with commands to try next, with this --model.
    """
    parts = [_header(view, width, lines), _layers(view, width, plain, lines), *_described(view), *_found(view, plain)]
    if view.memories is not None:
        parts += [Text(), _memories(view, view.memories, width, plain)]
    for attribution in view.attributions:
        parts += [Text(), _attribution(attribution, width, plain)]
    return Group(*parts, *([] if next_steps is None else _next_steps(view, next_steps, width)))


def _next_steps(view: TraceView, model_given: str, width: int) -> list[RenderableType]:
    """Three commands: the card of the memory that promotes the prediction most, its ablation, and the explorer."""
    rows = [] if view.memories is None else [row for row in view.memories.rows if (row.score or 0.0) > 0]
    best = next(iter([*view.described, *rows]), None)
    if best is None:
        return []
    name = best.name
    model = f" --model {shlex.quote(model_given)}" if model_given else ""
    steps = {
        f"unembed value {name}{model}": f"what {name} promotes, and on what text it fires",
        f"unembed trace {shlex.quote(view.prompt)} --set {name}=0{model}": "the same prompt without it",
        f"unembed serve {shlex.quote(view.prompt)}{model}": "all of this in a browser",
    }
    title: list[RenderableType] = [Text(), Text("Try next", style="bold")]
    if max(map(len, steps)) + _REMARK > width:  # a command is never broken: the terminal wraps one that is too long
        return [
            *title,
            *(
                Text.assemble(
                    (f"# {what}\n", "dim"), visible_rich(command, prose=True), no_wrap=True, overflow="ignore"
                )
                for command, what in steps.items()
            ),
        ]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    for command, what in steps.items():
        table.add_row(visible_rich(command, prose=True), what)
    return [*title, table]


def draw_explanation(view: TraceView, width: int, *, plain: bool = False) -> RenderableType:
    """Header, the target's rank through the layers, and the attributions of its logit."""
    parts = [_header(view, width, 1), _layers(view, width, plain, 1), *_found(view, plain)]
    for attribution in view.attributions:
        parts += [Text(), _attribution(attribution, width, plain)]
    return Group(*parts)


def _header(view: TraceView, width: int, lines: int) -> RenderableType:
    first = Text.assemble((view.model, "bold"), ("  " + view.sizes, "dim"))
    tokens = Text()
    start = 0
    for text, count in join_bytes([token.token for token in view.tokens]):
        here = start <= view.position < start + count
        style = "dim" if view.roles is not None and view.roles[start] is None else ""
        tokens.append_text(_token(text, "reverse" if here else style, cells=40))
        tokens.append(f"×{count} " if count > 1 else " ", style="dim")  # tokens that make this one character
        start += count
    tokens.rstrip()
    count = max(lines, 4 if width >= 100 else 2)
    parts = [
        first,
        Text(),
        tokens,
        *_roles(view),
        Text.assemble("→ ", _candidates(view.prediction, count, view.target.id)),
    ]
    if view.without_edits is not None:
        edited = Text.assemble(("edited  ", "bold"), ", ".join(view.edits))
        before = Text.assemble(("without → ", "dim"), _candidates(view.without_edits, count, None))
        parts += [edited, before]
    return Group(*parts, Text())


def _roles(view: TraceView) -> list[Text]:
    """Who says what in a conversation: the positions of each role's tokens."""
    if view.roles is None:
        return []
    turns: list[str] = []
    start = 0
    for role, group in groupby(view.roles):
        end = start + len(list(group)) - 1
        if role is not None:
            turns.append(f"{role} {start}" + (f" to {end}" if end > start else ""))
        start = end + 1
    return [Text.assemble(("roles  ", "bold"), ", ".join(turns), ("; the other tokens are the chat template's", "dim"))]


def _token(text: str, style: str = "", *, cells: int = _TOKEN_CELLS) -> Text:
    """A token, cut to a number of cells with an ellipsis."""
    shown = visible_rich(text, style=style)
    shown.truncate(cells, overflow="ellipsis")
    return shown


def _candidates(candidates: Sequence[Candidate], count: int, target: int | None) -> Text:
    shown = Text()
    for i, candidate in enumerate(candidates[:count]):
        shown.append("  " if i else "")
        shown.append_text(_candidate(candidate, target, _TOKEN_CELLS))
    return shown


def _candidate(candidate: Candidate, target: int | None, cells: int) -> Text:
    shown = _token(candidate.token, _ACCENT if candidate.id == target else "", cells=cells)
    return shown.append(f" {percent(candidate.probability)}", style="dim")


def _heading(title: str, note: str, target: Text | None = None) -> Text:
    return Text.assemble((title, "bold"), target or "", ("   " + note if note else "", "dim"))


def _layers(view: TraceView, width: int, plain: bool, lines: int) -> RenderableType:
    has_middle = any(layer.middle is not None for layer in view.layers)
    ranks = [_ranks(layer, has_middle) for layer in view.layers]
    digits = [max(len(f"{row[i]:,}") for row in ranks) for i in range(len(ranks[0]))]
    mixer = mixer_of_all(view.layers)
    short = "attn" if mixer == "attention" else "mixer"
    head = f"before → {short} → FFN" if has_middle else "before → after"
    of_ranks = max(len(head), sum(digits) + 3 * (len(digits) - 1))
    # The token columns share the width that is left; a token that does not fit is cut with an ellipsis.
    columns = 3 if has_middle else 2
    room = (width - 5 - 2 - of_ranks - (0 if plain else 4) - 2 * columns) // columns
    several = lines == 1 and room >= 44
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    table.add_column("layer", justify="right", no_wrap=True)
    for name in ("before", f"after {mixer}", "after FFN") if has_middle else ("before", "after"):
        # Column names wrap between words where the terminal is narrow.
        table.add_column(name, no_wrap=room >= len(name), max_width=room)
    title = Text.assemble("rank of ", _token(view.target.token, _ACCENT, cells=of_ranks - 8), "\n", head)
    table.add_column(title, no_wrap=True)
    if not plain:
        table.add_column("", no_wrap=True)
    for layer, row in zip(view.layers, ranks, strict=True):
        streams = [layer.before, *([layer.middle or []] if has_middle else []), layer.after]
        cells: list[RenderableType] = [str(layer.layer)]
        cells += [_cell(candidates, lines, room, view.target.id, several) for candidates in streams]
        cells.append(_places(row, digits))
        if not plain:
            cells.append(_signs(layer.events, view.target.id))
        table.add_row(*cells)
    here = character_at([token.token for token in view.tokens], view.position)
    where = Text.assemble(" at position ", (str(view.position), "bold"), " ", _token(here))
    basis = {
        "final": "logit lens, through the final norm",
        "raw": "logit lens, unembedding alone",
        "frozen": "logit lens, final norm at the run's scale",
        "jacobian": "Jacobian lens",
    }[view.basis]
    shown = ", including unlearned tokens" if view.show_unlearned else ""
    mixers = mixers_in_words(view.layers)
    named = [Text(f"{mixers[0].upper()}{mixers[1:]}.", style="dim")] if mixers else []
    return Group(_heading("Layers", basis + shown, where), *named, table)


def _cell(candidates: Sequence[Candidate], lines: int, room: int, target: int, several: bool) -> Text:
    """The top tokens of a stream: one, a line each, or side by side where there is room."""
    if several:
        return _candidates(candidates, 2, target)
    shown = Text("\n")
    rows = [_candidate(one, target, max(4, min(_TOKEN_CELLS, room - 5))) for one in candidates[:lines]]
    return shown.join(rows)


def _ranks(layer: LayerView, has_middle: bool) -> list[int]:
    """The target's rank before the layer, after its attention, and after its FFN."""
    middle = [layer.rank_before if layer.rank_middle is None else layer.rank_middle] if has_middle else []
    return [layer.rank_before, *middle, layer.rank_after]


def _places(ranks: Sequence[int], digits: Sequence[int]) -> Text:
    """Ranks under each other, the first marked."""
    shown = Text()
    for i, (rank, wide) in enumerate(zip(ranks, digits, strict=True)):
        shown.append(" → " if i else "", style="dim")
        shown.append(f"{rank:>{wide},}", style=_ACCENT if rank == 1 else "")
    return shown


def _signs(events: Sequence[EventView], target: int) -> Text:
    """Signs of the events of the followed token; those of others are in their sentence."""
    own = [event for event in events if event.id == target]
    return Text(" ").join(Text(_SIGNS[event.kind], style=_EVENT_STYLE[event.kind]) for event in own)


def _found(view: TraceView, plain: bool) -> list[RenderableType]:
    """The findings, the largest effect first, then the other events; signs as in the table."""
    sentences = [(one.kind, one.sentence) for one in view.findings]
    events = [(event.kind, event.sentence) for layer in view.layers for event in layer.events]
    rows = [*sentences, *(event for event in events if event not in sentences)]
    if not rows:
        return []
    table = Table.grid(padding=(0, 1, 0, 0))
    if not plain:
        table.add_column(width=1)
    table.add_column()
    for kind, sentence in rows:
        sign = [] if plain else [Text(_SIGNS.get(kind, ""), style=_EVENT_STYLE.get(kind, ""))]
        # Invisible characters are already marked in the sentence. A no-break space keeps a number and its percent sign
        # on one line.
        table.add_row(*sign, Text(re.sub(r"(?<=\d) %", "%", sentence)))
    return [Text(), *([_heading("Findings", "the largest effect first")] if sentences else []), table]


def _described(view: TraceView) -> list[RenderableType]:
    """A line for each memory with a description that promotes the target."""
    if not view.described:
        return []
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column()
    places = decimals(row.effect for row in view.described)
    for row in view.described:
        table.add_row(row.name, _signed_text(row.effect, places), visible_rich(row.description, prose=True))
    title = Text.assemble(("Memories that promote ", "bold"), _token(view.target.token, _ACCENT, cells=24))
    note = "by effect on its logit over the average token's"
    return [Text(), title.append(f"   {note}", style="dim"), table]


def _memories(view: TraceView, memories: MemoriesView, width: int, plain: bool) -> RenderableType:
    rows = memories.rows
    has_triggers = any(row.trigger is not None for row in rows)
    has_usual = any(row.times_usual is not None for row in rows)
    # Without room for both, a trigger is more informative than a bar.
    cells_of_bar = 0 if plain or (has_triggers and width < 100) else 8 if width < 100 else 16
    scale = Scale.of([row.score or 0.0 for row in rows], cells_of_bar or 8)
    names = max((len(_name(row)) for row in rows), default=6)
    room = width - (max(6, names) + 2 + 7 + 2 + 8 + (8 if has_usual else 0) + (cells_of_bar + 3 if cells_of_bar else 0))
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
    table.add_column("promotes", no_wrap=True, overflow="ellipsis", max_width=max(10, room))
    if has_triggers:
        table.add_column("fires most on", no_wrap=True, justify="right", max_width=max(12, of_trigger))
    of_m, of_effect = decimals(row.coefficient for row in rows), decimals(row.score or 0.0 for row in rows)
    for row in rows:
        cells: list[RenderableType] = [_name(row), signed(row.coefficient, of_m)]
        if has_usual:
            cells.append("" if row.times_usual is None else f"{row.times_usual:.1f}")
        cells.append(_signed_text(row.score or 0.0, of_effect))
        if cells_of_bar:
            cells.append(_bar(row.score or 0.0, scale))
        cells.append(_promoted(row, max(10, room)))
        if has_triggers:
            cells.append(
                ""
                if row.trigger is None
                else passage(row.trigger.prefix, row.trigger.token, max(12, of_trigger), plain=plain)
            )
        table.add_row(*cells)
    title = Text.assemble(("Memories behind ", "bold"), _question(view))
    note = "largest effect on the difference first" if view.against is not None else "largest effect on the logit first"
    return Group(title.append(f"   {note}", style="dim"), table, *_apart(memories))


def _apart(memories: MemoriesView) -> list[Text]:
    """A line for the memories that are on for nearly every token, and one for the rest."""
    lines: list[Text] = []
    if on := memories.always_on:
        lines.append(Text.assemble(("always on  ", "dim")))
        effects = [row.score or 0.0 for row in on]
        places = decimals(effects)
        for row, effect in zip(on[:_ALWAYS_ON_SHOWN], effects, strict=False):
            lines[0].append_text(Text.assemble(_name(row), " ", _signed_text(effect, places), "  "))
        more = f"and {len(on) - _ALWAYS_ON_SHOWN} more  " if len(on) > _ALWAYS_ON_SHOWN else ""
        lines[0].append(f"{more}together {signed(sum(effects), places)}", style="dim")
    rest = f"{memories.others:,} other active memories together {signed(memories.others_effect)}"
    return [*lines, Text(rest, style="dim")]


def _question(view: TraceView) -> Text:
    shown = _token(view.target.token, _ACCENT, cells=24)
    return shown if view.against is None else Text.assemble(shown, " over ", _token(view.against.token, cells=24))


def _name(row: SubUpdateView) -> str:
    return row.name


def _promoted(row: SubUpdateView, room: int) -> Text:
    """As many whole tokens as fit into the room: those suppressed where the memory lowers the lead, else promoted."""
    shown = Text("suppresses", style="dim") if row.lowers else Text()
    for token in row.suppressed if row.lowers else row.promoted:
        next_token = _token(token)
        if shown and cell_len(shown.plain) + 1 + cell_len(next_token.plain) > room:
            break
        shown.append(" " if shown else "")
        shown.append_text(next_token)
    return shown


def _bar(value: float, scale: Scale) -> Text:
    return Text.assemble((scale.left(value), OPPOSES), ("│", "dim"), (scale.right(value), PROMOTES))


def _signed_text(value: float, places: int | None = None) -> Text:
    return Text(signed(value, places), style=PROMOTES if value > 0 else OPPOSES if value < 0 else "")


def _attribution(attribution: AttributionView, width: int, plain: bool) -> RenderableType:
    labels = max((cell_len(row.label) for row in attribution.rows), default=0)
    widest = max(labels, min(24, width // 3))
    scale = Scale.of([row.contribution for row in attribution.rows], max(10, min(48, width - widest - 12)))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False, show_edge=False)
    table.add_column(max_width=widest)
    table.add_column(justify="right", no_wrap=True)
    if not plain:
        table.add_column(no_wrap=True)
    places = decimals(row.contribution for row in attribution.rows)
    for row in attribution.rows:
        cells: list[RenderableType] = [visible_rich(row.label, prose=True), _signed_text(row.contribution, places)]
        table.add_row(*cells, *([] if plain else [_bar(row.contribution, scale)]))
    if attribution.always_on:
        on = attribution.always_on
        names = ", ".join(row.label.removeprefix("memory ") for row in on[:_ALWAYS_ON_SHOWN])
        more = f" and {len(on) - _ALWAYS_ON_SHOWN} more" if len(on) > _ALWAYS_ON_SHOWN else ""
        label = Text(f"always on: {names}{more}", style="dim", overflow="fold", no_wrap=False)
        table.add_row(label, _signed_text(sum(row.contribution for row in on), places))
    if attribution.others:
        rest: list[RenderableType] = [
            Text(f"{attribution.others:,} others together", style="dim"),
            _signed_text(attribution.others_contribution, places),
        ]
        table.add_row(*rest)
    name = _token(attribution.token, _ACCENT, cells=24)
    title = Text.assemble(("Why ", "bold"), name)
    if attribution.against is not None:
        title.append_text(Text.assemble((" rather than ", "bold"), _token(attribution.against, cells=24)))
    what = "difference of logits" if attribution.against is not None else "logit"
    title.append(f"   {what} {signed(attribution.logit)}, by {attribution.by}", style="dim")
    proof = Text.assemble(
        ("sum of contributions ", "dim"),
        signed(attribution.total),
        (f" = {what} ", "dim"),
        signed(attribution.logit),
        (f"   relative error {attribution.error:.0e}", "dim"),
    )
    return Group(title, table, proof)

"""A trace drawn for a terminal, 60 to 160 columns wide. Pure: a view in, something rich can print out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from unembed.cli.bars import OPPOSES, PROMOTES, Scale, percent, signed
from unembed.cli.index.view import passage
from unembed.results import visible_rich
from unembed.schemas.trace import AttributionView, Candidate, EventView, LayerView, SubUpdateView, TraceView

_ACCENT = "bold green"
_TOKEN_CELLS = 16
_SIGNS = {"saturation": "◆", "elimination": "✕"}
_EVENT_STYLE = {"saturation": "bold green", "elimination": "dark_orange3"}


def draw_trace(view: TraceView, width: int, *, plain: bool = False) -> Any:
    """Header, the layers, what was found, the dominant sub-updates, the attribution."""
    parts = [_header(view, width), _layers(view, width, plain), *_found(view, plain)]
    if any(layer.sub_updates for layer in view.layers):
        parts += [Text(), _sub_updates(view, width, plain)]
    for attribution in view.attributions:
        parts += [Text(), _attribution(attribution, width, plain)]
    return Group(*parts)


def draw_explanation(view: TraceView, width: int, *, plain: bool = False) -> Any:
    """Header, the target's way through the layers, and the attributions of its logit."""
    parts = [_header(view, width), _layers(view, width, plain), *_found(view, plain)]
    for attribution in view.attributions:
        parts += [Text(), _attribution(attribution, width, plain)]
    return Group(*parts)


def _header(view: TraceView, width: int) -> Any:
    first = Text.assemble((view.model, "bold"), ("  " + view.sizes, "dim"))
    tokens = Text()
    for token in view.tokens:
        here = token.position == view.position
        tokens.append_text(_token(token.token, "reverse" if here else "", cells=40))
        tokens.append(" ")
    end = Text.assemble("→ ", _candidates(view.prediction, 4 if width >= 100 else 2, view.target.id))
    lines = [first, Text(), tokens, end]
    if view.without_edits is not None:
        edited = Text.assemble(("edited  ", "bold"), ", ".join(view.edits))
        before = Text.assemble(("without → ", "dim"), _candidates(view.without_edits, 4 if width >= 100 else 2, None))
        lines += [edited, before]
    return Group(*lines, Text())


def _token(text: str, style: str = "", *, cells: int = _TOKEN_CELLS) -> Text:
    """A token, cut to a number of cells with an ellipsis."""
    shown = visible_rich(text, style=style)
    shown.truncate(cells, overflow="ellipsis")
    return shown


def _candidates(candidates: Sequence[Candidate], count: int, target: int | None) -> Text:
    shown = Text()
    for i, candidate in enumerate(candidates[:count]):
        if i:
            shown.append("  ")
        shown.append_text(_token(candidate.token, _ACCENT if candidate.id == target else ""))
        shown.append(f" {percent(candidate.probability)}", style="dim")
    return shown


def _heading(title: str, note: str, target: Text | None = None) -> Text:
    return Text.assemble((title, "bold"), target or "", ("   " + note if note else "", "dim"))


def _layers(view: TraceView, width: int, plain: bool) -> Any:
    has_middle = any(layer.middle is not None for layer in view.layers)
    counts = (1, 1, 1) if width < 110 else (1, 1, 3) if width < 145 else (2, 2, 3)
    if width < 76:
        has_middle = False
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    table.add_column("layer", justify="right", no_wrap=True)
    table.add_column("before", no_wrap=True)
    if has_middle:
        table.add_column("after attention", no_wrap=True)
    table.add_column("after FFN" if has_middle else "after", no_wrap=True)
    table.add_column(
        Text.assemble("place of ", _token(view.target.token, _ACCENT, cells=14)), justify="right", no_wrap=True
    )
    if not plain:
        table.add_column("", no_wrap=True)
    for layer in view.layers:
        cells: list[Any] = [str(layer.layer), _candidates(layer.before, counts[0], view.target.id)]
        if has_middle:
            cells.append(_candidates(layer.middle or [], counts[1], view.target.id))
        cells.append(_candidates(layer.after, counts[2], view.target.id))
        cells.append(_places(layer, width))
        if not plain:
            cells.append(_event_signs(layer.events))
        table.add_row(*cells)
    where = Text.assemble(" at ", (str(view.position), "bold"), " ", _token(view.tokens[view.position].token))
    basis = {"final": "through the final norm", "raw": "readout alone", "frozen": "final norm, scale of the run"}[
        view.basis
    ]
    hidden = ", unlearned tokens left out" if view.hide_unlearned else ""
    return Group(_heading("Layers", basis + hidden if width >= 76 else basis, where), table)


def _places(layer: LayerView, width: int) -> Text:
    """Where the target stands: before → after FFN, the middle too where there is room."""
    ranks = [layer.rank_before, layer.rank_after]
    if width >= 110 and layer.rank_middle is not None:
        ranks.insert(1, layer.rank_middle)
    if width < 76:
        ranks = ranks[-1:]
    shown = Text()
    for i, rank in enumerate(ranks):
        shown.append(" → " if i else "", style="dim")
        shown.append(f"{rank + 1:,}", style=_ACCENT if rank == 0 else "")
    return shown


def _event_signs(events: Sequence[EventView]) -> Text:
    return Text(" ").join(Text(_SIGNS[event.kind], style=_EVENT_STYLE[event.kind]) for event in events)


def _found(view: TraceView, plain: bool) -> list[Any]:
    """The findings, the heaviest first, then the events that they do not tell; signs as in the table."""
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
        # Tokens were made visible where the sentence was; a line never breaks between a number and its percent sign.
        table.add_row(*sign, Text(re.sub(r"(?<=\d) %", "%", sentence)))
    return [Text(), *([_heading("Findings", "the heaviest first")] if sentences else []), table]


def _sub_updates(view: TraceView, width: int, plain: bool) -> Any:
    updates = [update for layer in view.layers for update in layer.sub_updates]
    has_triggers = any(update.trigger is not None for update in updates) and width >= 72
    # A trigger says more than a bar where there is not room for both.
    cells_of_bar = 0 if plain or (has_triggers and width < 100) else 8 if width < 100 else 16
    scale = Scale.of([update.signed_share for update in updates], cells_of_bar or 8)
    room = width - (6 + 6 + (cells_of_bar + 2 if cells_of_bar else 0) + 8 + 8 + 10)
    of_trigger = round(room * 0.62) if has_triggers else 0
    room -= of_trigger + 2 if has_triggers else 0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    table.add_column("memory", no_wrap=True)
    table.add_column("m", justify="right", no_wrap=True)
    if cells_of_bar:
        table.add_column(scale.left(0.0) + "│", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column(_token(view.target.token, _ACCENT, cells=10), justify="right", no_wrap=True)
    table.add_column("pushes toward", no_wrap=True, overflow="ellipsis", min_width=12)
    if has_triggers:
        table.add_column("its key fires most on", no_wrap=True, justify="right", max_width=max(12, of_trigger))
    previous = None
    for update in updates:
        # The layer is bright where it changes, so that the eye finds the groups without rules between them.
        name = Text.assemble((f"{update.layer}.", "dim" if update.layer == previous else "bold"), str(update.index))
        previous = update.layer
        cells: list[Any] = [name, signed(update.coefficient)]
        if cells_of_bar:
            cells.append(_bar(update.signed_share, scale))
        score = Text("") if update.score is None else _signed_text(update.score)
        cells += [percent(update.share), score, _pushed(update, max(12, room))]
        if has_triggers:
            cells.append(
                ""
                if update.trigger is None
                else passage(update.trigger.prefix, update.trigger.token, max(12, of_trigger), plain=plain)
            )
        table.add_row(*cells)
    note = "by |m|·‖v‖, share of the layer's update; m < 0 pushes toward the value's lowest tokens"
    return Group(_heading("Dominant sub-updates", note if width >= 112 else "by |m|·‖v‖, share of the layer's"), table)


def _pushed(update: SubUpdateView, room: int) -> Text:
    """As many of the tokens as the room holds, whole."""
    shown = Text()
    for token in update.promoted:
        next_token = _token(token)
        if shown and cell_len(shown.plain) + 1 + cell_len(next_token.plain) > room:
            break
        shown.append(" " if shown else "")
        shown.append_text(next_token)
    return shown


def _bar(value: float, scale: Scale) -> Text:
    return Text.assemble((scale.left(value), OPPOSES), ("│", "dim"), (scale.right(value), PROMOTES))


def _signed_text(value: float) -> Text:
    return Text(signed(value), style=PROMOTES if value > 0 else OPPOSES if value < 0 else "")


def _attribution(attribution: AttributionView, width: int, plain: bool) -> Any:
    scale = Scale.of([row.contribution for row in attribution.rows], max(12, min(48, width - 40)))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False, show_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    if not plain:
        table.add_column(no_wrap=True)
    for row in attribution.rows:
        cells: list[Any] = [visible_rich(row.label, prose=True), _signed_text(row.contribution)]
        table.add_row(*cells, *([] if plain else [_bar(row.contribution, scale)]))
    if attribution.others:
        rest: list[Any] = [
            Text(f"{attribution.others:,} others together", style="dim"),
            _signed_text(attribution.others_contribution),
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

"""Draw the card of one memory (FFN neuron) in a terminal: what it promotes, and the text on which it fires."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Group, RenderableType
from rich.table import Table as Columns
from rich.text import Text

from unembed.cli.passages import draw_passages, promoted_line
from unembed.index import MemoryCard
from unembed.results import Table, decimals_of, format_signed, visible_rich


def draw_card(card: MemoryCard, width: int, *, plain: bool = False) -> RenderableType:
    """Draw a memory's card.

    For each sign of the coefficient: the memory's description, the tokens that it promotes, and its triggers (the text
    positions where it fires most). Then a table of tokens with their scores.
    """
    table, shown, poles, truth = card.tokens, card.shown, card.poles, card.truth
    if poles[0].pole != shown:
        table, shown = _negated(table), poles[0].pole
    drawn = Columns(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    ends = [end for end in ("promoted", "suppressed") if f"{end}_token" in table.columns]
    for name in ends:
        drawn.add_column(
            {"promoted": "promotes", "suppressed": "suppresses"}[name], no_wrap=True, max_width=(width - 24) // 2
        )
        drawn.add_column("score", justify="right", no_wrap=True)
    places = decimals_of(score for name in ends for score in table.columns[f"{name}_score"])
    for row in table.rows():
        cells = [(row[f"{name}_token"], row[f"{name}_score"]) for name in ends]
        drawn.add_row(
            *(part for token, score in cells for part in (visible_rich(token), Text(format_signed(score, places))))
        )
    parts: list[RenderableType] = [Text(table.title, style="bold")]
    parts += [] if truth is None else [Text(f"{truth[0].upper()}{truth[1:]}.")]
    for number, one in enumerate(poles):
        if one.title:
            stronger = ", the stronger pole" if number == 0 and one.strength > poles[-1].strength else ""
            often = f": {one.often}" if one.often else ""
            parts += [Text(), Text(f"{one.title}{stronger}", style="bold").append(often, style="not bold")]
            end = "promoted" if one.pole == shown else "suppressed"
            parts.append(promoted_line(table.columns[f"{end}_token"], width))
        parts += [] if one.description is None else [visible_rich(one.description, prose=True)]
        if one.title and one.triggers is not None:
            parts.append(draw_passages(one.triggers, width, plain=plain, signature=False))
    if poles[0].title:
        parts += [Text(), Text(f"Scores of the value at {shown} coefficients", style="bold"), drawn]
    else:
        parts += [Text(), drawn]
    if poles[0].title or poles[0].triggers is None:
        source = table if poles[0].triggers is None else poles[0].triggers
        about = replace(source.provenance, basis=table.provenance.basis)
        parts += [Text(), visible_rich(about.line(), prose=True, style="dim")]
    else:
        found = poles[0].triggers
        about = replace(found.provenance, basis=table.provenance.basis)
        parts += [Text(), draw_passages(Table(found.title, found.columns, about), width, plain=plain)]
    if card.to_build:
        missing = f"no index of the model is ready; {card.to_build} finds the text on which its memories fire"
        parts.append(Text(missing, style="dim"))
    return Group(*parts)


def _negated(table: Table) -> Table:
    """Return the table of tokens for the other sign of the coefficient: promoted and suppressed tokens are swapped."""
    other = {"promoted": "suppressed", "suppressed": "promoted"}
    columns = {
        f"{other[name.partition('_')[0]]}_{name.partition('_')[2]}": [-x for x in found] if "score" in name else found
        for name, found in table.columns.items()
    }
    return Table(table.title, columns, table.provenance)

"""Draw the card of one memory (FFN neuron) in a terminal: what it promotes, and the text on which it fires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.table import Table as Columns
from rich.text import Text

from unembed.cli.passages import draw_passages
from unembed.index import MemoryCard
from unembed.results import Table, decimals_of, format_signed, visible_rich


def draw_card(card: MemoryCard, width: int, *, plain: bool = False) -> RenderableType:
    """Draw a memory's card.

    First a table of tokens with their scores: in a gated layer, the tokens promoted at each sign of the coefficient,
    which the other sign suppresses. Then, for each sign, its description and triggers (the text positions where the
    memory fires most), if there are any.
    """
    table, poles, truth = card.tokens, card.poles, card.truth
    if poles[0].pole != card.shown:
        table = _negated(table)
    parts: list[RenderableType] = [Text(table.title, style="bold")]
    parts += [] if truth is None else [Text(f"{truth[0].upper()}{truth[1:]}.")]
    if poles[0].title:
        parts += [Text(), Text("Tokens promoted at each sign of the coefficient; the other sign suppresses them")]
        parts.append(_scores(table, tuple(f"at {one.pole} coefficients" for one in poles), width, flipped=True))
    for number, one in enumerate(poles):
        has_more = one.description is not None or one.often or one.triggers is not None
        if one.title and has_more:
            stronger = ", the stronger pole" if number == 0 and one.strength > poles[-1].strength else ""
            often = f": {one.often}" if one.often else ""
            parts += [Text(), Text(f"{one.title}{stronger}", style="bold").append(often, style="not bold")]
        parts += [] if one.description is None else [visible_rich(one.description, prose=True)]
        if one.title and one.triggers is not None:
            parts.append(draw_passages(one.triggers, width, plain=plain, signature=False))
    if not poles[0].title:
        parts += [Text(), _scores(table, ("promotes", "suppresses"), width)]
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


def _scores(table: Table, headings: Sequence[str], width: int, *, flipped: bool = False) -> Columns:
    """Draw the promoted tokens, and the suppressed ones beside them if the table has them, with their scores.

    Args:
        flipped: give the suppressed tokens the scores of the other sign, at which they are promoted.
    """
    drawn = Columns(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    sides = [
        (end, head)
        for end, head in zip(("promoted", "suppressed"), headings, strict=True)
        if f"{end}_token" in table.columns
    ]
    lists: list[tuple[list[str], list[float]]] = []
    for end, heading in sides:
        drawn.add_column(heading, no_wrap=True, max_width=(width - 24) // 2)
        drawn.add_column("score", justify="right", no_wrap=True)
        sign = -1 if flipped and end == "suppressed" else 1
        lists.append((table.columns[f"{end}_token"], [sign * score for score in table.columns[f"{end}_score"]]))
    places = decimals_of(score for _, scores in lists for score in scores)
    for n in range(len(table)):
        drawn.add_row(
            *(
                part
                for tokens, scores in lists
                for part in (visible_rich(tokens[n]), Text(format_signed(scores[n], places)))
            )
        )
    return drawn


def _negated(table: Table) -> Table:
    """Return the table of tokens for the other sign of the coefficient: promoted and suppressed tokens are swapped."""
    other = {"promoted": "suppressed", "suppressed": "promoted"}
    columns = {
        f"{other[name.partition('_')[0]]}_{name.partition('_')[2]}": [-x for x in found] if "score" in name else found
        for name, found in table.columns.items()
    }
    return Table(table.title, columns, table.provenance)

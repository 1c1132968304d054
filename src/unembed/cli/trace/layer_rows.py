"""Draw the table of a trace's layers in a terminal: the top tokens in each layer, and the rank of the target token."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from unembed.cli.trace.folding import Fold, folded
from unembed.cli.trace.tokens import ACCENT, TOKEN_CELLS, candidate_text, candidates_text, token_text
from unembed.models import Candidate
from unembed.results import character_at
from unembed.trace import EventView, LayerView, TraceView, mixer_of_all, mixers_in_words

SIGNS = {"saturation": "◆", "elimination": "✕"}
EVENT_STYLE = {"saturation": "bold green", "elimination": "dark_orange3"}


def draw_layers(
    view: TraceView, width: int, *, symbols: bool = False, lines: int = 1, everything: bool = False
) -> RenderableType:
    """Draw the table of layers and notes on what it leaves out.

    Args:
        symbols: mark the target token's events (saturation, elimination) with symbols. Use this only if the output
            also describes the events in words: they are found by the logit lens, even if another lens computed the
            table.
        lines: number of tokens in each cell.
        everything: give each layer its own row; by default, layers without a change are joined (see `folding`).
    """
    has_middle = any(layer.middle is not None for layer in view.layers)
    rows = list(view.layers) if everything else folded(view.layers)
    ranks = [_ranks_of(row, has_middle) for row in rows]
    digits = [max(len(_rank(row[i])) for row in ranks) for i in range(len(ranks[0]))]
    mixer = mixer_of_all(view.layers)
    short = "attn" if mixer == "attention" else "mixer"
    head = f"before → {short} → FFN" if has_middle else "before → after"
    of_ranks = max(len(head), sum(digits) + 3 * (len(digits) - 1))
    # The columns of tokens (two, or three with one for the tokens after attention) share the width that the other
    # columns leave; a token that does not fit is cut with an ellipsis.
    columns = 3 if has_middle else 2
    room = (width - 5 - 2 - of_ranks - (4 if symbols else 0) - 2 * columns) // columns
    several = lines == 1 and room >= 44
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    table.add_column("layer", justify="right", no_wrap=True)
    for name in ("before", f"after {mixer}", "after FFN") if has_middle else ("before", "after"):
        # If the column is narrower than its heading, the heading may wrap between words.
        table.add_column(name, no_wrap=room >= len(name), max_width=room)
    title = Text.assemble("rank of ", token_text(view.target.token, ACCENT, cells=of_ranks - 8), "\n", head)
    table.add_column(title, no_wrap=True)
    if symbols:
        table.add_column("", no_wrap=True)
    for row, of_row in zip(rows, ranks, strict=True):
        first, last = (row.layers[0], row.layers[-1]) if isinstance(row, Fold) else (row, row)
        middle: Sequence[Candidate] = () if isinstance(row, Fold) else row.middle or ()
        streams = [first.before, *([middle] if has_middle else []), last.after]
        cells: list[RenderableType] = [row.numbers if isinstance(row, Fold) else str(row.layer)]
        cells += [_cell(candidates, lines, room, view.target.id, several) for candidates in streams]
        cells.append(_places(of_row, digits))
        if symbols:
            cells.append(_signs(() if isinstance(row, Fold) else row.events, view.target.id))
        table.add_row(*cells)
    here = character_at([token.token for token in view.tokens], view.position)
    where = Text.assemble(" at position ", (str(view.position), "bold"), " ", token_text(here))
    heading = Text.assemble(("Layers", "bold"), where, (f"   read by {view.reader}", "dim"))
    mixers = mixers_in_words(view.layers)
    named = [Text(f"{mixers[0].upper()}{mixers[1:]}.", style="dim")] if mixers else []
    notes = [Text(note, style="dim") for note in (_folds(view, rows), _hidden(view)) if note]
    return Group(heading, *named, table, *notes)


def _cell(candidates: Sequence[Candidate], lines: int, room: int, target: int, several: bool) -> Text:
    """Return the text of a table cell with top tokens: if `several`, two in a line if they fit, else one."""
    if not candidates:
        return Text("⋯", style="dim")
    if several:
        return candidates_text(candidates, 2, target)
    shown = Text("\n")
    rows = [candidate_text(one, target, max(4, min(TOKEN_CELLS, room - 5))) for one in candidates[:lines]]
    return shown.join(rows)


def _ranks_of(row: LayerView | Fold, has_middle: bool) -> list[int | None]:
    """Return the target's ranks before the row's layers, after attention (None for several layers), and after them."""
    if isinstance(row, Fold):
        return [row.layers[0].rank_before, *([None] if has_middle else []), row.layers[-1].rank_after]
    middle = [row.rank_before if row.rank_middle is None else row.rank_middle] if has_middle else []
    return [row.rank_before, *middle, row.rank_after]


def _rank(rank: int | None) -> str:
    return "⋯" if rank is None else f"{rank:,}"


def _places(ranks: Sequence[int | None], digits: Sequence[int]) -> Text:
    """Write the ranks of a row, padded so that the columns align; rank 1 is highlighted."""
    shown = Text()
    for i, (rank, wide) in enumerate(zip(ranks, digits, strict=True)):
        shown.append(" → " if i else "", style="dim")
        shown.append(f"{_rank(rank):>{wide}}", style=ACCENT if rank == 1 else "")
    return shown


def _signs(events: Sequence[EventView], target: int) -> Text:
    """Return the symbols of events (saturation, elimination) of the target token in a layer."""
    own = [event for event in events if event.id == target]
    return Text(" ").join(Text(SIGNS[event.kind], style=EVENT_STYLE[event.kind]) for event in own)


def _folds(view: TraceView, rows: Sequence[LayerView | Fold]) -> str:
    """Return a sentence that explains which layers share a row, and why they count as unchanged."""
    told: list[str] = []
    target = token_text(view.target.token).plain
    for fold in (row for row in rows if isinstance(row, Fold)):
        if fold.kind == "far":
            told.append(f"{fold.numbers}: {target} is not among the first {fold.beyond:,}")
        else:
            told.append(f"{fold.numbers}: {token_text(fold.layers[0].after[0].token).plain} stays first")
    return f"Layers {'; '.join(told)}. --all shows each." if told else ""


def _hidden(view: TraceView) -> str:
    """Return a sentence with the number of tokens that are left out of the lists of top tokens."""
    if not view.hidden:
        return "Every token is listed." if view.show_unlearned else ""
    return f"{view.hidden:,} tokens are not listed (bytes, or never learned: --show-unlearned); ranks count them."

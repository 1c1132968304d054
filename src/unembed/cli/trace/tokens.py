"""Format tokens, predicted tokens with probabilities, and signed numbers for the terminal output of a trace."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from unembed.cli.bars import OPPOSES, PROMOTES, Scale
from unembed.models import Candidate
from unembed.results import format_probability, format_signed, visible_rich
from unembed.trace import TraceView

ACCENT = "bold green"
TOKEN_CELLS = 16


def token_text(text: str, style: str = "", *, cells: int = TOKEN_CELLS) -> Text:
    """Return a token, cut with an ellipsis to at most `cells` characters' width."""
    shown = visible_rich(text, style=style)
    shown.truncate(cells, overflow="ellipsis")
    return shown


def candidates_text(candidates: Sequence[Candidate], count: int, target: int | None) -> Text:
    """Return the first `count` candidates with their probabilities in one line; the target is highlighted."""
    shown = Text()
    for i, candidate in enumerate(candidates[:count]):
        shown.append("  " if i else "")
        shown.append_text(candidate_text(candidate, target, TOKEN_CELLS))
    return shown


def candidate_text(candidate: Candidate, target: int | None, cells: int) -> Text:
    """Return one candidate with its probability."""
    shown = token_text(candidate.token, ACCENT if candidate.id == target else "", cells=cells)
    return shown.append(f" {format_probability(candidate.probability)}", style="dim")


def question(view: TraceView) -> Text:
    """Return the target token and the token that it is compared with, as "TARGET over OTHER"."""
    shown = token_text(view.target.token, ACCENT, cells=24)
    return shown if view.against is None else Text.assemble(shown, " over ", token_text(view.against.token, cells=24))


def bar(value: float, scale: Scale) -> Text:
    """Return a bar that starts at an axis: to the right for positive values, to the left for negative ones."""
    return Text.assemble((scale.left(value), OPPOSES), ("│", "dim"), (scale.right(value), PROMOTES))


def signed_text(value: float, places: int | None = None) -> Text:
    """Return a number with its sign, in the colour of positive or negative bars."""
    return Text(format_signed(value, places), style=PROMOTES if value > 0 else OPPOSES if value < 0 else "")

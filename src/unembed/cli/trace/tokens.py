"""Format tokens, predicted tokens with probabilities, and signed numbers for the terminal output of a trace."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from unembed.cli.bars import OPPOSES, PROMOTES, Scale
from unembed.models import Candidate
from unembed.results import format_probability, format_signed, visible_rich
from unembed.trace import HeadEffectView, HeadSource, TraceView

ACCENT = "bold green"
TOKEN_CELLS = 16
_READ = 0.2
"""A source token is shown if its contribution to a head's effect is at least this share of the largest one."""


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


def sources_read(view: TraceView, row: HeadEffectView) -> list[tuple[HeadSource, str]]:
    """Return the source tokens that contribute most to a head's effect, each with words that say which one it is.

    The words are " itself" for the position that is explained, the position in brackets for a token whose text the
    prompt has more than once, and empty for any other.
    """
    least = _READ * max((abs(source.effect) for source in row.sources), default=0.0)
    texts = [token.token for token in view.tokens]

    def which(source: HeadSource) -> str:
        if source.position == view.position:
            return " itself"
        return f" ({source.position})" if texts.count(source.token) > 1 else ""

    return [(source, which(source)) for source in row.sources if abs(source.effect) >= least]


def explained(view: TraceView) -> str:
    """Return the logit, or difference of two logits, on which effects are measured, in words."""
    logit = f"the logit of {token_text(view.target.token).plain}"
    return logit if view.against is None else f"{logit} minus that of {token_text(view.against.token).plain}"

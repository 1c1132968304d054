"""The answers whose terminal form is drawn by hand, because a table would be harder to read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple


class Drawing(NamedTuple):
    """How an answer's view is shown."""

    draw: Callable[..., Any]
    """Given the columns to draw in and whether it is `plain`: something that rich prints."""
    page: Callable[[], str] | None
    """The page; that of the sections when None."""


def drawing_of(view: Any) -> Drawing:
    """Return how a view is drawn; it is recognised by the name of its class, whose module may import torch."""
    match type(view).__name__:
        case "Explanation":
            from unembed.cli.trace.html import page
            from unembed.cli.trace.terminal import draw_explanation

            draw = partial(draw_explanation, view.view, everything=view.everything)
            return Drawing(draw, lambda: page(view.view, view.provenance.line()))
        case "MemoryCard":
            from unembed.cli.memory_card import draw_card

            return Drawing(partial(draw_card, view), None)
        case "Gallery":
            from unembed.cli.gallery import draw_gallery

            return Drawing(partial(draw_gallery, view), None)
        case other:
            raise TypeError(f"no drawing of a {other}")

"""Choose the function that draws an answer in the terminal, for answers that are not shown as plain tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple


class Drawing(NamedTuple):
    """The functions that draw an answer in the terminal and on a page."""

    draw: Callable[..., Any]
    """Takes the terminal's width and `plain`, and returns an object that rich can print."""
    page: Callable[[], str] | None
    """Returns the HTML page; None if the page shows the sections of the answer."""


def drawing_of(view: Any) -> Drawing:
    """Return the functions that draw a view.

    The view's class is recognised by its name, because importing the class could import torch.
    """
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
            raise TypeError(f"no function draws objects of the class {other}")

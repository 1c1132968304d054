"""Print to the terminal, write HTML pages, and print JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

NARROWEST, WIDEST = 60, 160


def terminal_width() -> int:
    """Return the terminal's width in characters (or COLUMNS), at least 60 and at most 160; 80 without a terminal."""
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((80, 24)).columns))


def show(draw: Callable[[int], RenderableType], *, plain: bool = False) -> None:
    """Print what `draw(width)` returns; colour only on a terminal, unless NO_COLOR or TERM=dumb is set."""
    from rich.console import Console

    width = terminal_width()
    colour = None if plain or not sys.stdout.isatty() or os.environ.get("NO_COLOR") else "auto"
    console = Console(
        file=sys.stdout,
        width=width,
        color_system=colour,
        no_color=colour is None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    drawable = _is_drawable(sys.stdout.encoding)
    if sys.stdout.isatty() and drawable:
        console.print(draw(width), crop=False)
        return
    with console.capture() as drawn:
        console.print(draw(width), crop=False)
    # rich pads tables with trailing spaces, which are removed for files and pipes.
    text = "".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines())
    sys.stdout.write(text if drawable else text.translate(_IN_ASCII))


_IN_ASCII = str.maketrans("│┃║─━═┼█▌▐◆✕→−…‖×•●↓⋯", "|||--=+#==*x>-~|xo@v~")
"""Replacements for bars, rules and signs if the encoding of stdout lacks them; each is one character wide."""


def _is_drawable(encoding: str | None) -> bool:
    try:
        "│█▌▐◆✕→−".encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def write_page(path: Path, page: str) -> None:
    """Write a page atomically, and print its path on stderr."""
    from unembed.results import visible, write_whole

    print(f"wrote {visible(str(write_whole(path, page)), prose=True)}", file=sys.stderr)


def write_json(content: Mapping[str, Any]) -> None:
    """Write a JSON object as one line on stdout."""
    json.dump(content, sys.stdout, ensure_ascii=False, allow_nan=False)
    print()

"""The command that opens the explorer on a result, printed below the result."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from unembed.cli.option_groups import Opening

if TYPE_CHECKING:
    from unembed.models.decoder import Decoder
    from unembed.stream import Edit


def print_explorer_link(opening: Opening, screen: str, *, index: Path | None = None, **state: str | None) -> None:
    """Print the command on stderr, so that stdout holds the result alone.

    Args:
        opening: the model that gave the result.
        screen: a screen of the page, such as `memory` or `labs/toxicity`.
        index: the index of the result, if the user gave one.
        state: what the page's address holds after the screen; None is left out.
    """
    print(f"In the explorer: {explorer_command(opening, screen, index=index, **state)}", file=sys.stderr)


def explorer_command(opening: Opening, screen: str, *, index: Path | None = None, **state: str | None) -> str:
    """`unembed serve` with the options that open this screen of this model."""
    query = urlencode({name: value for name, value in state.items() if value is not None})
    given = {
        "--model": None if opening.model == "wren" else opening.model,
        "--revision": opening.revision,
        "--tokenizer": opening.tokenizer,
        "--dtype": opening.dtype,
        "--device": opening.device,
        "--index": None if index is None else str(index),
        "--view": f"{screen}?{query}" if query else screen,
    }
    parts = [f"{option} {shlex.quote(text)}" for option, text in given.items() if text is not None]
    return " ".join(["unembed serve", *(["--offline"] if opening.offline else []), *parts])


def position_in_address(lm: Decoder, prompt: str, position: int) -> str | None:
    """The position counted from the first token; None for the last one, which the page shows by default."""
    if position == -1:
        return None
    return str(position if position >= 0 else lm.encode(prompt).shape[-1] + position)


def edits_in_address(lm: Decoder, edits: Sequence[Edit]) -> str | None:
    """The edits as the page's address writes them (None without edits), those the page can make: memories and heads."""
    return ";".join(_written(lm, edit) for edit in edits if edit.target in ("coefficient", "head")) or None


def _written(lm: Decoder, edit: Edit) -> str:
    name = (
        lm.memory_name(*lm.memory(edit.layer, edit.index))
        if edit.target == "coefficient"
        else f"L{edit.layer}H{edit.index}"
    )
    where = edit.positions if isinstance(edit.positions, str) else ",".join(map(str, edit.positions))
    return f"{name}:{edit.action}:{_plain(edit.value)}@{where}"


def _plain(value: float) -> str:
    return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)

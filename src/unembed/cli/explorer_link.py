"""Print, below a result, the `unembed serve` command that opens the same result in the explorer."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from unembed.cli.option_groups import Opening
from unembed.names import head_name, memory_name

if TYPE_CHECKING:
    from unembed.stream import Edit


def print_explorer_link(
    opening: Opening, screen: str, *, index: Path | None = None, edits: Sequence[Any] = (), **state: str | None
) -> None:
    """Print the `unembed serve` command on stderr. Nothing is printed if the explorer does not support the edits.

    Args:
        screen: a screen of the explorer, such as `memory` or `labs/toxicity`.
        index: the index that was used, if the user gave one.
        edits: the edits of the forward pass; the explorer supports those of memories and heads only.
        state: query parameters of the page's address; those whose value is None are left out.
    """
    if any(edit.target not in ("coefficient", "head") for edit in edits):
        return
    written = edits_in_address(edits)
    print(f"In the explorer: {explorer_command(opening, screen, index=index, edits=written, **state)}", file=sys.stderr)


def explorer_command(opening: Opening, screen: str, *, index: Path | None = None, **state: str | None) -> str:
    """Return the `unembed serve` command that opens a screen of the explorer with this model."""
    query = urlencode({name: value for name, value in state.items() if value is not None})
    given = {
        "--model": None if opening.model == "wren" else opening.model,
        "--revision": opening.revision,
        "--tokenizer": opening.tokenizer,
        "--dtype": opening.dtype,
        "--device": opening.device,
        "--lens": opening.lens,
        "--adapter": None if opening.adapter is None else str(opening.adapter),
        "--index": None if index is None else str(index),
        "--view": f"{screen}?{query}" if query else screen,
    }
    switches = {
        "--offline": opening.offline,
        "--trust-remote-code": opening.trust_remote_code,
        "--no-special-tokens": not opening.special_tokens,
    }
    parts = [switch for switch, is_on in switches.items() if is_on]
    parts += [f"{option} {shlex.quote(text)}" for option, text in given.items() if text is not None]
    return " ".join(["unembed serve", *parts])


def edits_in_address(edits: Sequence[Edit]) -> str | None:
    """Return the query parameter for edits of memories and heads; None without edits."""
    return ";".join(_written(edit) for edit in edits) or None


def _written(edit: Edit) -> str:
    where = edit.positions if isinstance(edit.positions, str) else ",".join(map(str, edit.positions))
    value = int(edit.value) if edit.value.is_integer() else edit.value
    if edit.target == "head" and isinstance(edit.index, int):
        name = head_name(edit.layer, edit.index)
    else:
        name = memory_name(edit.layer, edit.index)
    return f"{name}:{edit.action}:{value!r}@{where}"

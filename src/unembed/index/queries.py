"""Queries that need no model: triggers, value readings, promoting, text search."""

from __future__ import annotations

from typing import Any

import numpy as np

from unembed.errors import IndexFault, InvalidInput
from unembed.index import text_search
from unembed.index.index_files import IndexFiles, shortened
from unembed.names import MemoryIndex
from unembed.results import Table
from unembed.validation import positive_int


def triggers(files: IndexFiles, layer: int, index: MemoryIndex, top: int, pole: str, context: int | None) -> Table:
    """See `Index.triggers`."""
    coefficient, position = files.pole(pole)
    layer, index = files.memory(layer, index)
    row = files.row(layer, index)
    n = min(positive_int("top", top), int((position[row] >= 0).sum()))
    columns = {"rank": list(range(1, n + 1)), "coefficient": coefficient[row][:n].tolist()}
    columns |= _places(files, position[row][:n], context)
    return files.table(f"Triggers of key {files.memory_name(layer, index)}, {pole} coefficients", columns)


def value_tokens(files: IndexFiles, layer: int, index: MemoryIndex, top: int, bottom: bool) -> Table:
    """See `Index.value_tokens`."""
    layer, index = files.memory(layer, index)
    readings = files.suppressed if bottom else files.readings
    if readings is None:
        raise IndexFault(
            f"index {files.path} has no suppressed tokens",
            why="an earlier version of unembed built it",
            instead="Run the same build again",
        )
    token, score = (part[files.row(layer, index)][: positive_int("top", top)] for part in readings)
    columns = {"rank": list(range(1, len(token) + 1)), "token_id": token.tolist()}
    columns |= {"token": [files.strings[i] for i in token], "score": score.tolist()}
    end = "Bottom" if bottom else "Top"
    return files.table(f"{end} tokens of value {files.memory_name(layer, index)}", columns)


def promoting(files: IndexFiles, token: str | int, top: int, by: str) -> Table:
    """See `Index.promoting`."""
    if by not in ("score", "rank"):
        raise InvalidInput(f"promoting by {by!r}", why="values are ordered by 'score' or 'rank'")
    number = files.token_id(token)
    tokens, scores = files.readings
    found = files.entries_of(number)
    rows, ranks = np.divmod(found, tokens.shape[1])
    if by == "rank":
        order = np.argsort(ranks, kind="stable")
        rows, ranks = rows[order], ranks[order]
    rows, ranks = rows[: positive_int("top", top)], ranks[:top]
    columns: dict[str, Any] = files.memory_columns(rows) | {
        "rank": (ranks + 1).tolist(),
        "score": scores[rows, ranks].tolist(),
    }
    columns["top_tokens"] = files.top_tokens(rows)
    return files.table(f"Values that promote {files.strings[number]!r}, {len(found):,} in all", columns)


def search(files: IndexFiles, text: str, top: int, pole: str, context: int | None) -> Table:
    """See `Index.search`."""
    files.need("search")
    match = text_search.match_of(text)
    positive_int("top", top)
    coefficient, position = files.pole(pole)
    passages = files.passages
    segments = text_search.segments_matching(files.path / "search.sqlite", match)
    flat = np.asarray(position).reshape(-1)
    chosen = text_search.inside(flat, np.asarray(passages.start), segments)
    rows, ranks = np.divmod(chosen, position.shape[1])
    strength = coefficient[rows, ranks] / coefficient[rows, 0]
    order = np.argsort(-strength, kind="stable")
    chosen_rows: list[int] = []
    for some in text_search.some_at_a_time(order):
        # Many keys share a trigger; each text is searched once.
        at, which = np.unique(flat[chosen[some]], return_inverse=True)
        matching = np.zeros(len(at), dtype=bool)
        matching[text_search.prefixes_matching([passages.text(passages.read_to(int(p))) for p in at], match)] = True
        chosen_rows += some[matching[which]].tolist()
        if len(chosen_rows) >= top:
            break
    best = chosen_rows[:top]
    strength = strength[best]
    rows, ranks = rows[best], ranks[best]
    columns: dict[str, Any] = files.memory_columns(rows) | {
        "rank": (ranks + 1).tolist(),
        "coefficient": coefficient[rows, ranks].tolist(),
        "strength": strength.tolist(),
    }
    return files.table(f"Triggers with {shortened(text)!r}", columns | _places(files, position[rows, ranks], context))


def _places(files: IndexFiles, positions: np.ndarray, context: int | None) -> dict[str, list[Any]]:
    if context is not None:
        context = positive_int("context", context, 0)
    return files.passages.place_columns(positions, context)

"""The questions that need the folder alone: triggers, value readings, promoting, text search."""

from __future__ import annotations

from typing import Any

import numpy as np

from unembed.errors import InvalidInput
from unembed.index import text_search
from unembed.index.index_files import Contents, shortened
from unembed.results import Table
from unembed.validation import positive_int

_PLACE_COLUMNS = ("document", "sentence", "position", "prefix", "token", "next_token")


def triggers(held: Contents, layer: int, index: int, top: int, pole: str, context: int | None) -> Table:
    """See `Index.triggers`."""
    coefficient, position = held.pole(pole)
    layer, index = held.memory(layer, index)
    row = held.row(layer, index)
    n = min(positive_int("top", top), int((position[row] >= 0).sum()))
    columns = {"rank": list(range(n)), "coefficient": coefficient[row][:n].tolist()}
    columns |= _places(held, position[row][:n], context)
    return held.table(f"Triggers of key {layer}.{index}, {pole} coefficients", columns)


def value_tokens(held: Contents, layer: int, index: int, top: int) -> Table:
    """See `Index.value_tokens`."""
    layer, index = held.memory(layer, index)
    token, score = (part[held.row(layer, index)][: positive_int("top", top)] for part in held.readings)
    columns = {"rank": list(range(len(token))), "token_id": token.tolist()}
    columns |= {"token": [held.strings[i] for i in token], "score": score.tolist()}
    return held.table(f"Top tokens of value {layer}.{index}", columns)


def promoting(held: Contents, token: str | int, top: int, by: str) -> Table:
    """See `Index.promoting`."""
    if by not in ("score", "rank"):
        raise InvalidInput(f"promoting by {by!r}", why="values are ordered by 'score' or 'rank'")
    number = held.token_id(token)
    tokens, scores = held.readings
    found = held.entries_of(number)
    rows, ranks = np.divmod(found, tokens.shape[1])
    if by == "rank":
        order = np.argsort(ranks, kind="stable")
        rows, ranks = rows[order], ranks[order]
    rows, ranks = rows[: positive_int("top", top)], ranks[:top]
    columns: dict[str, Any] = held.memories(rows) | {"rank": ranks.tolist(), "score": scores[rows, ranks].tolist()}
    columns["top_tokens"] = held.top_tokens(rows)
    return held.table(f"Values that promote {held.strings[number]!r}, {len(found):,} in all", columns)


def search(held: Contents, text: str, top: int, pole: str, context: int | None) -> Table:
    """See `Index.search`."""
    held.need("search")
    match = text_search.match_of(text)
    positive_int("top", top)
    coefficient, position = held.pole(pole)
    passages = held.passages
    segments = text_search.segments_matching(held.path / "search.sqlite", match)
    flat = np.asarray(position).reshape(-1)
    chosen = text_search.inside(flat, np.asarray(passages.start), segments)
    rows, ranks = np.divmod(chosen, position.shape[1])
    strength = coefficient[rows, ranks] / coefficient[rows, 0]
    order = np.argsort(-strength, kind="stable")
    kept: list[int] = []
    for some in text_search.some_at_a_time(order):
        # Many keys share a trigger: each text is looked at once.
        at, which = np.unique(flat[chosen[some]], return_inverse=True)
        matching = np.zeros(len(at), dtype=bool)
        matching[text_search.prefixes_matching([passages.text_to(int(p)) for p in at], match)] = True
        kept += some[matching[which]].tolist()
        if len(kept) >= top:
            break
    kept = kept[:top]
    strength = strength[kept]
    rows, ranks = rows[kept], ranks[kept]
    columns: dict[str, Any] = held.memories(rows) | {
        "rank": ranks.tolist(),
        "coefficient": coefficient[rows, ranks].tolist(),
        "strength": strength.tolist(),
    }
    return held.table(f"Triggers with {shortened(text)!r}", columns | _places(held, position[rows, ranks], context))


def _places(held: Contents, positions: np.ndarray, context: int | None) -> dict[str, list[Any]]:
    if context is not None:
        context = positive_int("context", context, 0)
    places = [held.passages.place(int(at), context) for at in positions]
    return {name: [getattr(place, name) for place in places] for name in _PLACE_COLUMNS}

"""A result as HTML for a notebook: a table, and the drawing that replaces it where scripts run."""

from __future__ import annotations

import html
import json
import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from unembed.errors import InvalidInput
from unembed.notebook.islands import script, style
from unembed.notebook.result_drawings import DRAWINGS
from unembed.results import Displayed, visible_html
from unembed.schemas.layer_grid import emergence

if TYPE_CHECKING:
    from unembed import Trace

MAX_DATA = 1_000_000
"""Characters of data in one output; a larger result is a table without a drawing."""


def html_of(result: object) -> str:
    """A result as HTML that needs nothing from outside.

    Raises:
        InvalidInput: results of this class have no drawing.
    """
    data, table = _drawn(result)
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    if len(text) > MAX_DATA:
        size = f"The drawing is left out: {len(text) / 1e6:.1f} MB is too much for a notebook. Use `unembed serve`."
        return f"{table}<p>{html.escape(size)}</p>"
    mark = f"unembed-{secrets.token_hex(6)}"
    # A classic script, since every notebook runs those in outputs. The function keeps its names local.
    return (
        f'<div id="{mark}" class="unembed">{table}</div><style>{style()}</style>'
        f'<script type="application/json" id="{mark}-data">{text}</script>'
        f"<script>(() => {{\n{script()}\n"
        f'draw(document.getElementById("{mark}"), JSON.parse(document.getElementById("{mark}-data").textContent));\n'
        f"}})();</script>"
    )


def data_of(result: object) -> dict[str, Any]:
    """The data of a result's drawing."""
    return _drawn(result)[0]


def _drawn(result: object) -> tuple[dict[str, Any], str]:
    """The data of a result's drawing, and the table."""
    from unembed import Trace
    from unembed.notebook.cards import Card

    if isinstance(result, Trace):
        return _trace(result)
    if isinstance(result, Card):
        return result.data, result.table
    if isinstance(result, Displayed) and (draw := DRAWINGS.get(type(result).__name__)) is not None:
        return draw(result), result.to_table().fragment()
    known = ", ".join(sorted(DRAWINGS))
    raise InvalidInput(f"a {type(result).__name__}", why=f"only a Trace, a Card and these have a drawing: {known}")


def _trace(trace: Trace) -> tuple[dict[str, Any], str]:
    view = emergence(trace.lm, trace, "".join(trace.token_strings))
    stage = view.stages[-1]
    head = "".join(f"<th>{visible_html(token.token)}</th>" for token in view.tokens)
    rows: list[str] = []
    for layer in reversed(range(len(stage.ids))):
        cells = zip(stage.ids[layer], stage.probabilities[layer], strict=True)
        body = "".join(f"<td>{visible_html(view.texts[ids[0]])} {p[0]:.0%}</td>" for ids, p in cells)
        rows.append(f"<tr><th>{layer}</th>{body}</tr>")
    caption = f"Most likely next token after every layer of {html.escape(view.model)}"
    table = (
        f"<table><caption>{caption}</caption><thead><tr><th>layer</th>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    return asdict(view), table

"""A result as HTML for a notebook: the table, then the drawing that takes its place."""

from __future__ import annotations

import html
import json
import secrets
from collections.abc import Callable
from typing import Any

from unembed.errors import InvalidInput
from unembed.notebook.islands import script, style
from unembed.results import visible_html
from unembed.schemas.layer_grid import emergence

LARGEST = 1_000_000
"""Characters of data in one output; beyond it the table stands alone."""
_BARS = 40


def html_of(result: Any) -> str:
    """A result as HTML that needs nothing from outside.

    Raises:
        InvalidInput: there is no drawing of such a result.
    """
    data, table = _drawn(result)
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    if len(text) > LARGEST:
        size = f"{len(text) / 1e6:.1f} MB of data are not put into the notebook; see it in `unembed serve`."
        return f"{table}<p>{html.escape(size)}</p>"
    mark = f"unembed-{secrets.token_hex(6)}"
    # A classic script: notebooks run those in outputs everywhere. Its names stay inside the function.
    return (
        f'<div id="{mark}" class="unembed">{table}</div><style>{style()}</style>'
        f'<script type="application/json" id="{mark}-data">{text}</script>'
        f"<script>(() => {{\n{script()}\n"
        f'draw(document.getElementById("{mark}"), JSON.parse(document.getElementById("{mark}-data").textContent));\n'
        f"}})();</script>"
    )


def data_of(result: Any) -> dict[str, Any]:
    """What a drawing is given."""
    return _drawn(result)[0]


def _drawn(result: Any) -> tuple[dict[str, Any], str]:
    drawing = _DRAWINGS.get(type(result).__name__)
    if drawing is None:
        raise InvalidInput(f"a {type(result).__name__}", why=f"drawings are of {', '.join(_DRAWINGS)}")
    return drawing(result)


def _trace(trace: Any) -> tuple[dict[str, Any], str]:
    view = emergence(trace.lm, trace, "".join(trace.token_strings))
    stage = view.stages[-1]
    head = "".join(f"<th>{visible_html(token.token)}</th>" for token in view.tokens)
    rows = []
    for layer in reversed(range(len(stage.ids))):
        cells = zip(stage.ids[layer], stage.probabilities[layer], strict=True)
        body = "".join(f"<td>{visible_html(view.texts[ids[0]])} {p[0]:.0%}</td>" for ids, p in cells)
        rows.append(f"<tr><th>{layer}</th>{body}</tr>")
    caption = f"Most likely next token after every layer of {html.escape(view.model)}"
    table = (
        f"<table><caption>{caption}</caption><thead><tr><th>layer</th>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    return view.to_dict(), table


def _attribution(attribution: Any) -> tuple[dict[str, Any], str]:
    rows = attribution.rows if len(attribution) <= _BARS else attribution.top(_BARS)
    others = len(attribution) - len(rows)
    note = (
        f"sum {attribution.total:.5g}, the model says {attribution.logit:.5g}, relative error {attribution.error:.1e}"
    )
    note = f"{others:,} more writers; {note}" if others else note
    data = {
        "schema": "unembed.attribution/1",
        "rows": [{"label": r.label, "layer": r.layer, "index": r.index, "contribution": r.contribution} for r in rows],
        "note": note,
    }
    body = "".join(f"<tr><td>{html.escape(r.label)}</td><td>{r.contribution:+.4g}</td></tr>" for r in rows)
    table = (
        "<table><caption>A logit as the sum of its writers</caption>"
        "<thead><tr><th>writer</th><th>contribution</th></tr></thead>"
        f"<tbody>{body}</tbody></table><p>{html.escape(note)}</p>"
    )
    return data, table


_DRAWINGS: dict[str, Callable[[Any], tuple[dict[str, Any], str]]] = {
    "Trace": _trace,
    "Attribution": _attribution,
    "Card": lambda card: (card.data, card.table),
}
"""By the name of the result's class: the classes themselves need not be imported to be drawn."""

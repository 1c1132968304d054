"""Show a result as HTML in a notebook: a table, which a script replaces by a drawing."""

from __future__ import annotations

import html
import json
import secrets
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from unembed.circuit_graph import CircuitGraph, FlowView, picture
from unembed.notebook.islands import script, style
from unembed.notebook.result_drawings import drawing
from unembed.notebook.widgets import widget_of
from unembed.results import Displayed, bytes_in_words, format_probability, html_table, visible_html
from unembed.trace import Trace, emergence

if TYPE_CHECKING:
    from anywidget import AnyWidget

_LISTED = 20
"""Number of nodes in a circuit's table, which the drawing replaces."""
_PICTURES: WeakKeyDictionary[CircuitGraph, FlowView] = WeakKeyDictionary()
MAX_DATA = 1_000_000
"""Maximum number of characters of data in one output; a larger result is shown as a table only."""


@dataclass(frozen=True)
class Card:
    """A drawing: its data, for the script that draws it, and the same data as an HTML table."""

    data: dict[str, Any] = field(repr=False)
    table: str = field(repr=False)

    def _repr_html_(self) -> str:
        """Return HTML with the table and a script that replaces it by the drawing, without network access."""
        text = json.dumps(self.data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
        if len(text) > MAX_DATA:
            size = (
                f"The drawing is left out: {bytes_in_words(len(text))} is too much for a notebook. Use `unembed serve`."
            )
            return f"{self.table}<p>{html.escape(size)}</p>"
        mark = f"unembed-{secrets.token_hex(6)}"
        # A classic script is used, because some notebooks do not run JavaScript modules in outputs. The script is
        # wrapped in a function, so that its names do not become global.
        return (
            f'<div id="{mark}" class="unembed">{self.table}</div><style>{style()}</style>'
            f'<script type="application/json" id="{mark}-data">{text}</script>'
            f"<script>(() => {{\n{script()}\nconst place = (id) => document.getElementById(id);\n"
            f'draw(place("{mark}"), JSON.parse(place("{mark}-data").textContent));\n'
            f"}})();</script>"
        )

    def on_page(self) -> str:
        """Return the drawing as HTML for a report's page; a shadow root isolates it from the page's style sheet."""
        text = json.dumps(self.data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
        css = json.dumps(style()).replace("<", "\\u003c")
        return (
            '<div id="drawing"></div><script type="application/json" id="drawing-data">'
            f"{text}</script><script>(() => {{\n{script()}\n"
            'const root = document.getElementById("drawing").attachShadow({ mode: "open" });\n'
            f'const look = document.createElement("style");\nlook.textContent = {css};\n'
            'const host = document.createElement("div");\nhost.className = "unembed";\nroot.append(look, host);\n'
            'draw(host, JSON.parse(document.getElementById("drawing-data").textContent));\n})();</script>'
        )

    def widget(self) -> AnyWidget:
        """Return the drawing as a Jupyter widget (needs `unembed[notebook]`)."""
        return widget_of(self.data)


def card_of(result: Displayed) -> Card | None:
    """Return the drawing of a result; None if results of its class have no drawing."""
    if isinstance(result, Trace):
        return _trace_card(result)
    if isinstance(result, CircuitGraph):
        return None if result.lm is None else circuit_card(result)
    table = result.to_table()
    data = drawing(result, table)
    return None if data is None else Card(data, table.fragment())


def circuit_card(graph: CircuitGraph) -> Card:
    """Draw a circuit: what flows from the prompt's tokens through heads and memories to the answer, and its test.

    The test measures how much of the model's behaviour the circuit explains. It runs when a graph is first drawn.

    Raises:
        Unsupported: the graph was opened from a file and has no model yet.
    """
    if graph not in _PICTURES:
        _PICTURES[graph] = picture(graph)
    return Card(_PICTURES[graph].to_dict(), graph.to_table()[:_LISTED].fragment())


def _trace_card(trace: Trace) -> Card:
    view = emergence(trace.lm, trace, "".join(trace.token_strings))
    stage = view.stages[-1]
    rows: list[list[str]] = []
    for layer in reversed(range(len(stage.ids))):
        cells = zip(stage.ids[layer], stage.probabilities[layer], strict=True)
        rows.append(
            [str(layer), *(f"{visible_html(view.texts[ids[0]])} {format_probability(p[0])}" for ids, p in cells)]
        )
    head = ["layer", *(visible_html(token.token) for token in view.tokens)]
    caption = f"Most likely next token after every layer of {html.escape(view.model)}"
    return Card(asdict(view), html_table(head, rows, caption=caption))

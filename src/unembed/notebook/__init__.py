"""Results in notebooks: a real table first, the explorer's own drawing in its place where scripts run, and widgets.

No network, no require.js: script, style and data are part of the output.
"""

from unembed.notebook.cards import composition_card, heads_card, memory_card, pattern_card, ranks_card
from unembed.notebook.drawings import html_of
from unembed.notebook.result_drawings import DRAWINGS
from unembed.notebook.widgets import widget_of
from unembed.results.display import Drawer, register_drawer

for _name in ("Trace", *DRAWINGS):
    register_drawer(_name, Drawer(html_of, widget_of))

__all__ = [
    "composition_card",
    "heads_card",
    "html_of",
    "memory_card",
    "pattern_card",
    "ranks_card",
    "widget_of",
]

"""Results in notebooks: a real table first, the explorer's own drawing in its place where scripts run, and widgets.

No network, no require.js: script, style and data are part of the output.
"""

from unembed.notebook.cards import heads_card, memory_card, pattern_card
from unembed.notebook.drawings import html_of
from unembed.notebook.widgets import widget_of
from unembed.results.display import Drawer, register_drawer

for _name in ("Trace", "Attribution"):
    register_drawer(_name, Drawer(html_of, widget_of))

__all__ = ["heads_card", "html_of", "memory_card", "pattern_card", "widget_of"]

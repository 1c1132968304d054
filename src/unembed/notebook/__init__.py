"""Results in notebooks: a real table first, the explorer's own drawing in its place where scripts run, and widgets.

No network, no require.js: script, style and data are part of the output.
"""

from unembed.notebook.cards import composition_card, heads_card, memory_card, pattern_card, ranks_card
from unembed.notebook.drawings import card_of
from unembed.results import Displayed

Displayed.draw = staticmethod(card_of)

__all__ = ["card_of", "composition_card", "heads_card", "memory_card", "pattern_card", "ranks_card"]

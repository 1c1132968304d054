"""Results in notebooks: a table, which the explorer's drawing replaces where scripts run, and widgets.

No network, no require.js: script, style and data are part of the output.
"""

from unembed.notebook.cards import composition_card, heads_card, memory_card, pattern_card, ranks_card
from unembed.notebook.drawings import Card, card_of, circuit_card
from unembed.results import Displayed

Displayed.draw = staticmethod(card_of)

__all__ = [
    "Card",
    "card_of",
    "circuit_card",
    "composition_card",
    "heads_card",
    "memory_card",
    "pattern_card",
    "ranks_card",
]

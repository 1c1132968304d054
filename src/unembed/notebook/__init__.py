"""Show results in notebooks: as the explorer's drawing, or as a table where scripts do not run; and as widgets.

The output contains its script, style sheet and data, so it needs no network and no require.js.
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

"""The atlas of a model: descriptions of its memories (FFN neurons) that can be run, and are tested on both sides.

A description is a rule on the text before a position, and a set of tokens. The rule is tested against the memory's
firing on text that did not suggest it, the tokens against what adding its value vector does to the predictions. Both
tests have a control.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.atlas.build import CARD as CARD
    from unembed.atlas.build import HEADS as HEADS
    from unembed.atlas.build import MEMORIES as MEMORIES
    from unembed.atlas.build import build_atlas as build_atlas
    from unembed.atlas.build import open_card as open_card
    from unembed.atlas.card import Card as Card
    from unembed.atlas.layer import AtlasSource as AtlasSource
    from unembed.atlas.lines import Line as Line
    from unembed.atlas.lines import read_lines as read_lines
    from unembed.atlas.rules import Rule as Rule
    from unembed.atlas.rules import read_rule as read_rule
    from unembed.atlas.text import RuleText as RuleText
else:
    __getattr__, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "build": "CARD HEADS MEMORIES build_atlas open_card",
            "card": "Card",
            "layer": "AtlasSource",
            "lines": "Line read_lines",
            "rules": "Rule read_rule",
            "text": "RuleText",
        },
    )

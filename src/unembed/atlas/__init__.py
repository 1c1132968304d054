"""The atlas of a model: tested descriptions of its memories (FFN neurons).

A description has two sides. The input side is a rule about the text before a position, which predicts where the memory
fires. The output side is a set of tokens, whose logits rise when the memory's value vector is added to the residual
stream. Each side is tested on text that was not used to find it, and compared with a control.
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
    from unembed.atlas.endpoint import Endpoint as Endpoint
    from unembed.atlas.judge import Judged as Judged
    from unembed.atlas.judge import Scores as Scores
    from unembed.atlas.judge import judge_lines as judge_lines
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
            "endpoint": "Endpoint",
            "judge": "Judged Scores judge_lines",
            "layer": "AtlasSource",
            "lines": "Line read_lines",
            "rules": "Rule read_rule",
            "text": "RuleText",
        },
    )

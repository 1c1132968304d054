"""Attention heads as circuits: what a head matches (QK), what it moves (OV), and how heads compose.

Four subpackages, each of which uses only those before it: `weights` (weight matrices as low-rank factors, the two
circuits of a head, copying, composition), `paths` (virtual weights and heads, path expansion, the residual stream),
`behaviour` (head scores, induction, heads on a prompt) and `text` (skip-trigrams, the direct path, examples from a
corpus).

Public names: `circuits` (as `unembed.circuits`), `Circuits`, `LowRank`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.attention.behaviour.repeated_pattern import InductionView as InductionView
    from unembed.attention.behaviour.repeated_pattern import induction_view as induction_view
    from unembed.attention.circuits import Circuits as Circuits
    from unembed.attention.paths.geometry import virtual_weights as virtual_weights
    from unembed.attention.paths.memory_connections import MemoryConnections as MemoryConnections
    from unembed.attention.paths.memory_connections import memory_connections as memory_connections
    from unembed.attention.text.head_examples import HeadExamples as HeadExamples
    from unembed.attention.text.head_examples import Progress as Progress
    from unembed.attention.text.head_examples import examples_of_heads as examples_of_heads
    from unembed.attention.views import HEAD_SCORES as HEAD_SCORES
    from unembed.attention.views import HeadsView as HeadsView
    from unembed.attention.views import HeadView as HeadView
    from unembed.attention.views import PartnersView as PartnersView
    from unembed.attention.views import RaisedView as RaisedView
    from unembed.attention.views import head_view as head_view
    from unembed.attention.views import heads_view as heads_view
    from unembed.attention.views import partners_view as partners_view
    from unembed.attention.views import raised_view as raised_view
    from unembed.attention.weights.low_rank import LowRank as LowRank
    from unembed.attention.weights.rotation import rotated as rotated
else:
    __getattr__, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "behaviour.repeated_pattern": "InductionView induction_view",
            "circuits": "Circuits",
            "paths.geometry": "virtual_weights",
            "paths.memory_connections": "MemoryConnections memory_connections",
            "text.head_examples": "HeadExamples Progress examples_of_heads",
            "views": "HEAD_SCORES HeadsView HeadView PartnersView RaisedView "
            "head_view heads_view partners_view raised_view",
            "weights.low_rank": "LowRank",
            "weights.rotation": "rotated",
        },
    )

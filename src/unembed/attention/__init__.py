"""Attention heads as circuits: what a head matches (QK), what it moves (OV), and how heads compose.

Owns matrices as factors (`LowRank`), the two circuits of a head, copying and matching scores, composition, virtual
heads, skip-trigrams, path expansion, head scores on text, induction and the geometry of the stream.

Public names: `circuits` (as `unembed.circuits`), `Circuits`, `LowRank`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.attention.behaviour.repeated_pattern import InductionView as InductionView
    from unembed.attention.behaviour.repeated_pattern import induction_view as induction_view
    from unembed.attention.circuits import Circuits as Circuits
    from unembed.attention.paths.geometry import subspaces as subspaces
    from unembed.attention.paths.geometry import virtual_weights as virtual_weights
    from unembed.attention.text.head_examples import HeadExamples as HeadExamples
    from unembed.attention.text.head_examples import Progress as Progress
    from unembed.attention.text.head_examples import examples_of_heads as examples_of_heads
    from unembed.attention.text.skip_trigrams import count_in_corpus as count_in_corpus
    from unembed.attention.text.skip_trigrams import frequent_tokens as frequent_tokens
    from unembed.attention.views import HEAD_SCORES as HEAD_SCORES
    from unembed.attention.views import ConnectionsView as ConnectionsView
    from unembed.attention.views import HeadsView as HeadsView
    from unembed.attention.views import HeadView as HeadView
    from unembed.attention.views import connections_view as connections_view
    from unembed.attention.views import head_view as head_view
    from unembed.attention.views import heads_view as heads_view
    from unembed.attention.weights.low_rank import LowRank as LowRank
    from unembed.attention.weights.paper import SOURCE as SOURCE
    from unembed.attention.weights.rotation import random_rotation as random_rotation
    from unembed.attention.weights.rotation import rotate_stream as rotate_stream
    from unembed.attention.weights.rotation import rotated as rotated
else:
    __getattr__, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "behaviour.repeated_pattern": "InductionView induction_view",
            "circuits": "Circuits",
            "paths.geometry": "subspaces virtual_weights",
            "text.head_examples": "HeadExamples Progress examples_of_heads",
            "text.skip_trigrams": "count_in_corpus frequent_tokens",
            "views": "HEAD_SCORES ConnectionsView HeadsView HeadView connections_view head_view heads_view",
            "weights.low_rank": "LowRank",
            "weights.paper": "SOURCE",
            "weights.rotation": "random_rotation rotate_stream rotated",
        },
    )

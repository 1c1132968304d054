"""The name, the sizes and the parts of a model, as the explorer draws them: live, or for the stored example."""

from __future__ import annotations

from typing import Any

from unembed.models.decoder import Decoder


def model_sizes(lm: Decoder) -> dict[str, Any]:
    """The fields of a model that every screen reads; lists have an entry for each layer."""
    return {
        "name": lm.name,
        "n_layers": lm.n_layers,
        "memories": [lm.n_memories_of(n) for n in range(lm.n_layers)],
        "memories_a_layer": lm.memories_a_layer,
        "mixers": [lm.mixer_name(n) for n in range(lm.n_layers)],
        "ffns": [block.feed_forward is not None for block in lm.structure.blocks],
        "n_heads": lm.n_heads,
        "heads_a_layer": lm.heads_a_layer,
        "d_vocab": lm.d_vocab,
        "n_ctx": lm.n_ctx,
    }

"""Return the sizes of a model: as one line of text, and layer by layer for the explorer."""

from __future__ import annotations

from typing import Any

from unembed.models.decoder import Decoder


def model_sizes(lm: Decoder) -> dict[str, Any]:
    """Return the sizes of a model as a dict for the explorer's screens; its lists have one entry for each layer."""
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


def sizes_of(lm: Decoder) -> str:
    """Return a model's sizes as one line of text."""
    parts = [f"{lm.n_layers} layers", lm.heads_a_layer]
    parts += [f"{lm.memories_a_layer} memories a layer"] if lm.memory_layers else []
    return " · ".join([*parts, f"{lm.d_vocab:,} tokens", lm.dtype_name])

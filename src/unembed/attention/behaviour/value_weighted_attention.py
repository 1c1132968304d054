"""Measure how much a head moves between two positions: the attention weight times the length of the moved vector.

The weight alone shows where a head attends, but not how much it moves. A head that has nothing to do attends to a
position with a short value vector, most often the first.

Source: Kobayashi et al. 2020, "Attention is not only a weight": the length of alpha f(x).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.models.decoder import Decoder
from unembed.stream.decomposition import source_values
from unembed.stream.run import Run

POINTS = ("pattern", "values")
"""The capture points that a run must record for `contribution_norms`."""


@torch.no_grad()
def contribution_norms(lm: Decoder, seen: Run, layer: int) -> Float[Tensor, "head dst src"]:
    """Return the length of what each head moves from each source to each destination, on the first prompt of a run.

    Where a norm follows the heads, the length is measured before that norm. Output biases belong to no source and are
    left out.

    Args:
        seen: a run that captured `POINTS`.

    Returns:
        Euclidean norms of vectors in the residual stream.
    """
    carried = torch.einsum("hsd,hdm->hsm", source_values(lm, seen, layer), lm.weights.W_O[layer]).norm(dim=-1)
    multiplier = abs(lm.structure.blocks[layer].attention.multiplier)
    return seen.at("pattern", layer)[0].to(carried.dtype) * carried[:, None] * multiplier

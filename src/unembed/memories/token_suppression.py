"""Values by the score they give one token: which raise it most, and which lower it most."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unembed.errors import InvalidInput
from unembed.memories.values import written_values
from unembed.models.decoder import Decoder


@dataclass(frozen=True)
class ScoredValue:
    """A memory and the raw score its value gives a token."""

    layer: int
    index: int
    score: float


@torch.no_grad()
def values_scoring(lm: Decoder, token: str | int, top: int = 20, *, lowest: bool = False) -> list[ScoredValue]:
    """The values with the largest (or lowest) score v . e_w for a token, in the raw basis, exactly.

    Raises:
        NotOneToken: the text is no token.
        Unsupported: the model has no memories.

    Memory: one score for each memory, and one layer's values.
    """
    if top < 1:
        raise InvalidInput(f"top {top}", why="at least one value must be listed")
    direction = lm.weights.W_U[:, lm.single_token(token)]
    rows = [(values := written_values(lm, n)) @ direction.to(values.dtype) for n in range(lm.n_layers)]
    starts = torch.tensor([len(row) for row in rows]).cumsum(0)
    scores = torch.cat([row.float().cpu() for row in rows])
    best = scores.topk(min(top, len(scores)), largest=not lowest)
    layers = torch.searchsorted(starts, best.indices, right=True)
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), starts])[layers]
    return [
        ScoredValue(n, i, s)
        for n, i, s in zip(layers.tolist(), (best.indices - offsets).tolist(), best.values.tolist(), strict=True)
    ]

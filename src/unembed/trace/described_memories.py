"""Find memories (FFN neurons) that promote a prediction and have a description in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from unembed.gallery import MemoryDescriptions
from unembed.logit_attribution import memory_contributions_over_average
from unembed.memories.token_ranking import LISTED
from unembed.memories.values import Values
from unembed.models.decoder import Decoder
from unembed.stream.run import Run

LEAST = 0.1
"""The smallest effect that is listed, in logits."""


@dataclass(frozen=True)
class DescribedMemory:
    """A memory, its description, and how much more it adds to the predicted token's logit than to the average logit."""

    layer: int
    index: int
    name: str
    """The memory's name, such as L5M278, or L12E7M345 in a mixture-of-experts layer."""
    description: str
    coefficient: float
    effect: float


@torch.no_grad()
def described_memories(
    lm: Decoder,
    run: Run,
    token: int,
    layers: Sequence[int],
    descriptions: MemoryDescriptions,
    top: int = 3,
) -> list[DescribedMemory]:
    """Return the memories with a description that promote a token most, largest effect first.

    A memory is listed only if the token is among the 30 that it promotes most.

    Args:
        run: a run of one prompt, restricted to the position (see `Run.at_position`).
        layers: layers that have memories.

    Raises:
        Unsupported: a layer has no memories.
    """
    if not len(descriptions):
        return []
    rows = []
    effects = memory_contributions_over_average(lm, run, layers, 0, token)
    for layer, effect in zip(layers, effects, strict=True):
        coefficients = run.at("coefficients", layer)[0, 0]
        for index in (effect >= LEAST).nonzero()[:, 0].tolist():
            coefficient = float(coefficients[index])
            description = descriptions.of(layer, index, negative=coefficient < 0)
            if description is not None:
                name = lm.memory_name(layer, index)
                rows.append(DescribedMemory(layer, index, name, description, coefficient, float(effect[index])))
    rows.sort(key=lambda row: -row.effect)
    return list(islice((row for row in rows if _promotes(lm, row, token)), top))


def _promotes(lm: Decoder, row: DescribedMemory, token: int) -> bool:
    """Return True if the token is among the `LISTED` tokens that the memory promotes most at its coefficient's sign.

    If it is not, the memory's description cannot explain the token.
    """
    listed, _ = Values(lm).top(row.layer, row.index, LISTED, bottom=row.coefficient < 0, show_unlearned=True)
    return token in listed.tolist()

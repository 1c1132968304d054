"""The effect of a memory on its own triggers: the probability of the tokens it promotes, with and without it.

The coefficient is set to 0 at the trigger token alone, in the running model, and the model's own next-token
distribution is compared with the one that it has without the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.models.decoder import Decoder
from unembed.stream.hooks import attach_hooks
from unembed.stream.run import forward_arguments, padded

_TOKENS_AT_ONCE = 2048


@dataclass(frozen=True)
class Removal:
    """One prefix on which a memory of the layer is removed."""

    index: int
    ids: Int[Tensor, " pos"]
    promoted: Int[Tensor, " k"]
    """The tokens whose probability is summed."""


@torch.no_grad()
def probability_drops(lm: Decoder, layer: int, removals: Sequence[Removal]) -> Float[Tensor, " removal"]:
    """How much the probability of the promoted tokens, taken together, falls when the memory is removed.

    Positive where the memory promotes them. Different memories of one layer share a forward pass.

    Memory: the logits of one position of each prefix of a batch of 2,048 tokens, and its activations.
    """
    drops = torch.zeros(len(removals), dtype=torch.float64)
    order = sorted(range(len(removals)), key=lambda i: len(removals[i].ids))
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and len(removals[order[end]].ids) * (end + 1 - start) <= _TOKENS_AT_ONCE:
            end += 1
        batch = order[start:end]
        chosen = [removals[i] for i in batch]
        before, after = (_probabilities(lm, layer, chosen, remove=remove) for remove in (False, True))
        drops[batch] = before - after
        start = end
    return drops


def _probabilities(lm: Decoder, layer: int, removals: Sequence[Removal], *, remove: bool) -> Float[Tensor, " removal"]:
    ids, mask = padded(lm, [one.ids for one in removals])
    rows, last = torch.arange(len(removals), device=lm.device), mask.sum(dim=1) - 1
    indices = torch.tensor([one.index for one in removals], device=lm.device)

    def silence(coefficients: Float[Tensor, "batch pos d_mlp"]) -> None:
        # The tensor is the down-projection's own input, so each row loses its own memory in one pass.
        coefficients[rows, last, indices] = 0

    captures = {("coefficients", layer): silence} if remove else {}
    with attach_hooks(lm, captures) as current:
        logits = lm.hf(ids, **forward_arguments(lm, mask), **current.arguments).logits[rows, last]  # (batch, d_vocab)
    p = logits.double().softmax(dim=-1).cpu()
    return torch.stack([p[row, one.promoted].sum() for row, one in enumerate(removals)])

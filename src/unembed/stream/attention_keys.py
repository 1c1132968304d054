"""Record the keys and values of one forward pass, so that later passes of its last position can attend to them.

A change at the last position of a prompt does not change any earlier key or value. So a forward pass of that position
alone, with the keys and values that the unchanged pass computed at all other positions, gives the same logits as a
forward pass of the whole prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unembed.models.decoder import Decoder
from unembed.stream.attention_weights import Attend, attending_by, looks_up_its_function, own_eager_function
from unembed.stream.hooks import accepts_argument


@dataclass(frozen=True, eq=False)
class Attended:
    """The keys, the values and the mask of one layer in a forward pass of one prompt."""

    key: Float[Tensor, "1 kv_head pos d_qk"]
    """The keys, after the rotation by position."""
    value: Float[Tensor, "1 kv_head pos d_v"]
    mask: Tensor | None
    """The mask that the attention function received; None if every position attends to all positions before it."""


def keeps_keys(lm: Decoder) -> bool:
    """Tell whether the keys and values of this model can be recorded with `keep_keys`.

    This is possible if all its token mixers are attention modules that look up their attention function at each call.
    """
    sites = [block.mixer for block in lm.structure.blocks if block.mixer is not None]
    return (
        lm.structure.streams is None
        and lm.hf.config._attn_implementation in ("sdpa", "eager")
        and accepts_argument(lm, "position_ids")
        and all(site.is_attention for site in sites)
        and all(looks_up_its_function(site.module) and own_eager_function(site.module) is not None for site in sites)
    )


def keep_keys(stack: ExitStack, lm: Decoder) -> dict[int, Attended]:
    """Record the keys and values of the model's next forward pass, until the stack closes.

    Returns a dict by layer, which the forward pass fills. `keeps_keys(lm)` must be True.
    """
    kept: dict[int, Attended] = {}

    def noting(layer: int, function: Attend) -> Attend:
        def noted(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **arguments: Any) -> Any:
            if mask is None or isinstance(mask, Tensor):
                kept[layer] = Attended(key.detach(), value.detach(), mask)
            return function(module, query, key, value, mask, **arguments)

        return noted

    stack.enter_context(lm.lock)  # otherwise, passes of other threads would be recorded, too
    for layer, module in _modules(lm):
        stack.enter_context(attending_by(module, "noting", lambda function, layer=layer: noting(layer, function)))
    return kept


@contextmanager
def attending_to(lm: Decoder, kept: dict[int, Attended], position: int) -> Iterator[None]:
    """A context in which a pass of one position attends to that position, and to recorded keys and values before it.

    Raises:
        KeyError: the keys of a layer were not recorded.
    """

    def joining(seen: Attended, function: Attend) -> Attend:
        def joined(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: Any, **arguments: Any) -> Any:
            mask = None if seen.mask is None else seen.mask[:, :, position : position + 1, : position + 1]
            key, value = _after(seen.key, key, position), _after(seen.value, value, position)
            return function(module, query, key, value, mask, **arguments)

        return joined

    with ExitStack() as stack:
        for layer, module in _modules(lm):
            seen = kept[layer]
            stack.enter_context(attending_by(module, "joining", lambda function, seen=seen: joining(seen, function)))
        yield


def _modules(lm: Decoder) -> list[tuple[int, nn.Module]]:
    return [(n, block.attention.module) for n, block in enumerate(lm.structure.blocks) if block.mixer is not None]


def _after(
    earlier: Float[Tensor, "1 kv_head pos d"], own: Float[Tensor, "row kv_head 1 d"], position: int
) -> Float[Tensor, "row kv_head before_and_own d"]:
    return torch.cat([earlier[:, :, :position].expand(own.shape[0], -1, -1, -1), own], dim=2)

"""Run the last token of a context in many copies at once, to get many gradients or to change the stream of each copy.

The model runs all tokens of a context except the last once, and caches their keys and values. The last token then runs
as a batch of copies. Earlier positions do not depend on the last token, so they can be left out of the autograd graph.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from unembed.errors import Unsupported, first_sentence
from unembed.models.decoder import Decoder
from unembed.stream.capture_points import has_point
from unembed.stream.gradients import on_the_graph
from unembed.stream.hooks import attach_hooks, change_tensor, memory_guard


def source_points(lm: Decoder) -> list[tuple[str, int]]:
    """Return (capture point, layer) of each residual stream with respect to which Jacobians are taken.

    The last element is the last residual stream, whose derivatives these Jacobians are.
    """
    middle = [("resid_mid", n) for n in range(lm.n_layers) if has_point(lm, "resid_mid", n)]
    return [*(("resid_pre", n) for n in range(lm.n_layers)), *middle, ("resid_post", lm.n_layers - 1)]


@torch.no_grad()
def cache_of(lm: Decoder, prefix: Int[Tensor, " pos"]) -> Any | None:
    """Return the model's cache after a prefix; None if the cache cannot be repeated for several copies.

    Keys and values can be repeated, but not the state of a convolution or of linear attention. Without a cache, whole
    contexts are run.
    """
    with lm.lock:
        cache = getattr(lm.hf(prefix[None], use_cache=True), "past_key_values", None)
    layers = getattr(cache, "layers", ())
    has_copies = hasattr(cache, "batch_repeat_interleave") and all(
        isinstance(layer, DynamicLayer) and not hasattr(layer, "recurrent_states") for layer in layers
    )
    return cache if has_copies else None


def copied(cache: Any) -> Any:
    """Return a deep copy of a cache, on the devices of its tensors.

    Tensors are copied by `Tensor.clone`, because `copy.deepcopy` of a tensor's storage fails on some devices.
    """
    tensors = [value for layer in cache.layers for value in vars(layer).values() if isinstance(value, Tensor)]
    return copy.deepcopy(cache, {id(tensor): tensor.clone() for tensor in tensors})


def _given(
    window: Int[Tensor, " pos"], copies: int, cache: Any | None
) -> tuple[Int[Tensor, "copy given"], dict[str, Any]]:
    """Return inputs for copies of a window: the last token and a copy of the cache; without a cache, all tokens."""
    whole = window[None].expand(copies, -1)
    if cache is None:
        return whole, {"use_cache": False}
    own = copied(cache)
    own.batch_repeat_interleave(copies)
    return whole[:, -1:], {"past_key_values": own, "use_cache": True, "attention_mask": torch.ones_like(whole)}


@torch.no_grad()
def last_token_passes(
    lm: Decoder,
    window: Int[Tensor, " pos"],
    copies: int,
    layer: int,
    change: Callable[[Float[Tensor, "copy d_model"]], Float[Tensor, "copy d_model"]],
    cache: Any | None = None,
) -> Float[Tensor, "copy d_vocab"]:
    """Return the logits after a window's last token, for copies whose residual stream after a layer is changed.

    Earlier positions are run once, and are the same in all copies. If the model allows the batch to grow in the middle
    of a forward pass, the layers up to `layer` are run once, and only the later layers are run for all copies.

    Args:
        change: maps the last position's streams after the layer to the streams that the next layer gets.
        cache: the result of `cache_of` for the window without its last token; not modified. Computed when None.
    """
    cache = cache_of(lm, window[:-1]) if cache is None else cache
    with memory_guard(f"{copies} copies of a token"):
        if cache is None:
            return _in_copies(lm, window, copies, layer, change, None)
        try:
            return _later_layers_in_copies(lm, window, copies, layer, change, cache)
        # Some models do not allow the batch to grow in the middle of a forward pass, so all layers are run in copies.
        except RuntimeError as error:
            if "memory" in str(error):
                raise
        return _in_copies(lm, window, copies, layer, change, cache)


def _in_copies(
    lm: Decoder,
    window: Int[Tensor, " pos"],
    copies: int,
    layer: int,
    change: Callable[[Float[Tensor, "copy d_model"]], Float[Tensor, "copy d_model"]],
    cache: Any | None,
) -> Float[Tensor, "copy d_vocab"]:
    """Run all layers for all copies; without a cache, run whole windows."""
    given, arguments = _given(window, copies, cache)

    def hook(stream: Tensor, _layer: int) -> Tensor:
        changed = stream.clone()
        changed[:, -1] = change(stream[:, -1])
        return changed

    with attach_hooks(lm, {}, (), {("resid_post", layer): hook}) as current:
        return lm.hf(given, **arguments, **current.arguments).logits[:, -1]


def _later_layers_in_copies(
    lm: Decoder,
    window: Int[Tensor, " pos"],
    copies: int,
    layer: int,
    change: Callable[[Float[Tensor, "copy d_model"]], Float[Tensor, "copy d_model"]],
    cache: Any,
) -> Float[Tensor, "copy d_vocab"]:
    """Run the layers up to `layer` for a single copy of the last token, and the later layers for all copies.

    Raises:
        RuntimeError: the model does not allow the batch to grow in the middle of a forward pass.
    """

    def split(stream: Tensor) -> Tensor:
        if stream.shape[:-1] != (1, 1):
            raise RuntimeError("the residual stream has several rows or token positions")
        return change(stream[:, -1].expand(copies, -1))[:, None].to(stream.dtype)

    given, arguments = _given(window, 1, cache)
    for n, own in enumerate(arguments["past_key_values"].layers):
        if n > layer:
            own.batch_repeat_interleave(copies)
    with attach_hooks(lm, {}) as current, ExitStack() as stack:
        change_tensor(stack, lm, layer, "resid_post", split)
        logits = lm.hf(given, **arguments, **current.arguments).logits[:, -1]
    if len(logits) != copies:
        raise RuntimeError(f"the model returned {len(logits)} rows of logits, not {copies}")
    return logits


def gradient_rows(
    lm: Decoder, window: Int[Tensor, " pos"], cache: Any | None, channels: Int[Tensor, " copy"]
) -> dict[tuple[str, int], Float[Tensor, "copy d_model"]]:
    """Return gradients of channels of the last residual stream at the last position, by capture point and layer.

    Row k of each tensor is the gradient of channel `channels[k]`.

    Raises:
        Unsupported: the forward pass cannot be differentiated.
    """
    n, own = len(channels), dict[tuple[str, int], Tensor]()
    given, arguments = _given(window, n, cache)
    points = source_points(lm)
    try:
        with memory_guard(f"{n} copies of a token"), attach_hooks(lm, {}) as current, torch.enable_grad():
            with on_the_graph(lm, points, own, current):
                lm.hf(given, **arguments, **current.arguments)
            last = current.by_position(own[points[-1]])[:, -1]
            total = last[torch.arange(n), channels.to(last.device)].sum()
            found = torch.autograd.grad(total, [own[key] for key in points[:-1]], allow_unused=True)
    except RuntimeError as error:
        raise Unsupported(
            f"a Jacobian lens of {lm.name}", why=f"its forward pass cannot be differentiated: {first_sentence(error)}"
        ) from error
    return {
        key: current.by_position(torch.zeros_like(own[key]) if gradient is None else gradient)[:, -1]
        for key, gradient in zip(points[:-1], found, strict=True)
    }

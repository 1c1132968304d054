"""Passes of the last token of a context in many copies at once, each with a graph or with a changed stream.

For each context the model reads all tokens but the last once. The last token is then run in many copies at once.
Earlier positions do not depend on this one, so nothing is lost by leaving them out of the graph.
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
    """Return where the Jacobian is taken: the source points, and the last stream."""
    middle = [("resid_mid", n) for n in range(lm.n_layers) if has_point(lm, "resid_mid", n)]
    return [*(("resid_pre", n) for n in range(lm.n_layers)), *middle, ("resid_post", lm.n_layers - 1)]


@torch.no_grad()
def cache_of(lm: Decoder, prefix: Int[Tensor, " pos"]) -> Any | None:
    """Return the model's cache after a prefix; None if the cache cannot be copied, so that whole contexts are run.

    What is copied are keys and values: a layer with a state (a convolution, a linear attention) has no such copies.
    """
    with lm.lock:
        cache = getattr(lm.hf(prefix[None], use_cache=True), "past_key_values", None)
    layers = getattr(cache, "layers", ())
    has_copies = hasattr(cache, "batch_repeat_interleave") and all(
        isinstance(layer, DynamicLayer) and not hasattr(layer, "recurrent_states") for layer in layers
    )
    return cache if has_copies else None


def copied(cache: Any) -> Any:
    """Return a copy of a cache, made on the device of its tensors.

    Tensors are cloned by their own kernels: `copy.deepcopy` of a tensor's storage fails on some devices.
    """
    tensors = [value for layer in cache.layers for value in vars(layer).values() if isinstance(value, Tensor)]
    return copy.deepcopy(cache, {id(tensor): tensor.clone() for tensor in tensors})


def _given(
    window: Int[Tensor, " pos"], copies: int, cache: Any | None
) -> tuple[Int[Tensor, "copy given"], dict[str, Any]]:
    """Return what the model is given to run a window in copies: the last token after a copy of the cache, or all."""
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
    """The logits after the last token of a window, run in several copies whose streams after a layer are changed.

    Earlier positions are read once, and are the same in all copies. The layers up to this one are run once, where the
    model takes more copies in its later layers; the layers after it in all copies.

    Args:
        change: from the streams at the last position after the layer to those that the next layer reads.
        cache: `cache_of` the window without its last token; it is not changed. Computed when None.
    """
    cache = cache_of(lm, window[:-1]) if cache is None else cache
    with memory_guard(f"{copies} copies of a token"):
        if cache is None:
            return _in_copies(lm, window, copies, layer, change, None)
        try:
            return _later_layers_in_copies(lm, window, copies, layer, change, cache)
        except RuntimeError as error:  # such a model reads the number of its copies once, at the start
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
    """Run all layers in copies; whole windows where there is no cache."""
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
    """Run the layers up to one on a single copy of the last token, and those after it on all copies.

    Raises:
        RuntimeError: the model does not take more copies in the middle of a pass.
    """

    def split(stream: Tensor) -> Tensor:
        if stream.shape[:-1] != (1, 1):
            raise RuntimeError("the stream is not of one token")
        return change(stream[:, -1].expand(copies, -1))[:, None].to(stream.dtype)

    given, arguments = _given(window, 1, cache)
    for n, own in enumerate(arguments["past_key_values"].layers):
        if n > layer:
            own.batch_repeat_interleave(copies)
    with attach_hooks(lm, {}) as current, ExitStack() as stack:
        change_tensor(stack, lm, layer, "resid_post", split)
        logits = lm.hf(given, **arguments, **current.arguments).logits[:, -1]
    if len(logits) != copies:
        raise RuntimeError("the copies were lost on the way")
    return logits


def gradient_rows(
    lm: Decoder, window: Int[Tensor, " pos"], cache: Any | None, channels: Int[Tensor, " copy"]
) -> dict[tuple[str, int], Float[Tensor, "copy d_model"]]:
    """Return, by point and layer, the gradients of channels of the last stream at the last position.

    Raises:
        Unsupported: the pass cannot be differentiated.
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
            f"a Jacobian lens of {lm.name}", why=f"a pass has no derivative: {first_sentence(error)}"
        ) from error
    return {
        key: current.by_position(torch.zeros_like(own[key]) if gradient is None else gradient)[:, -1]
        for key, gradient in zip(points[:-1], found, strict=True)
    }

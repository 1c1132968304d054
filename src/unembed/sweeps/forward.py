"""One batch through the model: each reducer receives its tensors as they appear, and the pass stops after the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from unembed.corpus.segments import Batch
from unembed.models.decoder import Decoder
from unembed.models.structure.experts import RoutedCoefficients
from unembed.stream.hooks import Callback, Stop, attach_hooks, memory_guard
from unembed.stream.run import forward_arguments
from unembed.sweeps.fast_kernels import Fast, chunked_gelu, fast_forward
from unembed.sweeps.reducers.reducer import LOGITS, Need, Reducer


@contextmanager
def feed_reducers(
    lm: Decoder, reducers: Sequence[Reducer], fast: Fast | None = None
) -> Iterator[Callable[[Batch], None]]:
    """A context whose yielded function runs a batch, exactly or fast, and feeds all reducers."""
    by_need: dict[Need, list[Reducer]] = {}
    for reducer in reducers:
        for need in dict.fromkeys(reducer.needs):
            by_need.setdefault(need, []).append(reducer)
    logit_reducers = by_need.pop(LOGITS, [])
    current_batch: list[Batch] = []
    missing: set[Need] = set()

    def seen(need: Need) -> None:
        missing.discard(need)
        if not missing and not logit_reducers:
            raise Stop

    def callback(need: Need) -> Callback:
        point, layer = need

        def feed_tensor(tensor: Tensor) -> None:
            tensor = tensor.to(lm.device)  # with a device_map, layers are on several
            for reducer in by_need[need]:
                reducer.see(point, layer, tensor, current_batch[0])
            seen(need)

        return feed_tensor

    def routed_callback(layer: int) -> Callable[[RoutedCoefficients], None]:
        def feed_routed(routed: RoutedCoefficients) -> None:
            need, routed = ("coefficients", layer), routed.to(lm.device)
            for reducer in by_need[need]:
                reducer.see_routed(layer, routed, current_batch[0])
            seen(need)

        return feed_routed

    callbacks: dict[Need, Any] = {}
    for point, layer in by_need:
        if point == "coefficients" and lm.experts_of(layer) is not None:
            callbacks["routed", layer] = routed_callback(layer)
        else:
            callbacks[point, layer] = callback((point, layer))
    with fast_forward(lm, fast), chunked_gelu(lm), attach_hooks(lm, callbacks) as current:

        @torch.no_grad()
        def feed(batch: Batch) -> None:
            current_batch[:] = [batch]
            missing.update(by_need)
            if by_need or logit_reducers:
                tokens = batch.tokens.to(lm.device)
                arguments = forward_arguments(lm, batch.mask.to(tokens)) | current.arguments
                with memory_guard(f"a batch of {tokens.numel()} tokens"), suppress(Stop):
                    if logit_reducers:
                        logits = lm.hf(tokens, **arguments).logits
                        for reducer in logit_reducers:
                            reducer.see(*LOGITS, logits, batch)
                    else:
                        body = lm.hf.get_decoder() if hasattr(lm.hf, "get_decoder") else lm.hf
                        body(tokens, **arguments)
            for reducer in reducers:
                reducer.update(batch)

        yield feed

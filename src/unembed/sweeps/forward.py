"""Run one batch: each reducer (statistic) receives the tensors it needs, and the pass stops after the last of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unembed.corpus.segments import Batch
from unembed.models.decoder import Decoder
from unembed.models.structure.experts import RoutedCoefficients
from unembed.stream.hooks import Stop, attach_hooks, memory_guard
from unembed.stream.run import forward_arguments
from unembed.sweeps.fast_kernels import Fast, chunked_gelu, fast_forward
from unembed.sweeps.reducers.reducer import LOGITS, Need, Reducer


@contextmanager
def feed_reducers(
    lm: Decoder, reducers: Sequence[Reducer], fast: Fast | None = None
) -> Iterator[Callable[[Batch], None]]:
    """A context that yields a function, which runs the model on a batch and passes the tensors to all reducers."""
    feed = _Feed(lm, reducers)
    with fast_forward(lm, fast), chunked_gelu(lm), attach_hooks(lm, feed.callbacks()) as current:

        def run(batch: Batch) -> None:
            feed.run(batch, current.arguments)

        yield run


class _Feed:
    """The reducers, grouped by the tensors that they need, and the current batch."""

    def __init__(self, lm: Decoder, reducers: Sequence[Reducer]) -> None:
        self._lm, self._reducers = lm, reducers
        self._by_need: dict[Need, list[Reducer]] = {}
        for reducer in reducers:
            for need in dict.fromkeys(reducer.needs):
                self._by_need.setdefault(need, []).append(reducer)
        self._of_logits = self._by_need.pop(LOGITS, [])
        self._missing: set[Need] = set()
        self._batch: Batch | None = None

    def callbacks(self) -> dict[Need, Any]:
        """Return, for each tensor that is needed, the function that receives it."""

        def is_routed(point: str, layer: int) -> bool:
            return point == "coefficients" and self._lm.experts_of(layer) is not None

        return {
            ("routed" if is_routed(point, layer) else point, layer): partial(
                self._see_routed if is_routed(point, layer) else self._see, (point, layer)
            )
            for point, layer in self._by_need
        }

    @torch.no_grad()
    def run(self, batch: Batch, given: dict[str, Any]) -> None:
        """Run the model on a batch, no further than the last tensor that is needed."""
        lm, self._batch = self._lm, batch
        self._missing.update(self._by_need)
        if self._by_need or self._of_logits:
            tokens = batch.tokens.to(lm.device)
            arguments = forward_arguments(lm, batch.mask.to(tokens)) | given
            with memory_guard(f"a batch of {tokens.numel()} tokens"), suppress(Stop):
                if self._of_logits:
                    logits = lm.hf(tokens, **arguments).logits
                    for reducer in self._of_logits:
                        reducer.see(*LOGITS, logits, batch)
                else:
                    lm.hf.get_decoder()(tokens, **arguments)
        for reducer in self._reducers:
            reducer.update(batch)

    def _see(self, need: Need, tensor: Tensor) -> None:
        # With a device_map, the layers may be on several devices.
        tensor = tensor.to(self._lm.device)
        for reducer in self._by_need[need]:
            reducer.see(*need, tensor, self._current)
        self._seen(need)

    def _see_routed(self, need: Need, routed: RoutedCoefficients) -> None:
        routed = routed.to(self._lm.device)
        for reducer in self._by_need[need]:
            reducer.see_routed(need[1], routed, self._current)
        self._seen(need)

    @property
    def _current(self) -> Batch:
        assert self._batch is not None
        return self._batch

    def _seen(self, need: Need) -> None:
        self._missing.discard(need)
        if not self._missing and not self._of_logits:
            raise Stop

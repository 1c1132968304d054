"""One batch through the model: every reducer fed as its tensors appear, the pass stopped after the last of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from unembed.corpus.segments import Batch
from unembed.models.decoder import Decoder
from unembed.stream.hooks import Callback, Stop, attach_hooks, memory_guard
from unembed.stream.run import forward_arguments
from unembed.sweeps.chunked_gelu import in_pieces
from unembed.sweeps.fast_kernels import Fast, quickened
from unembed.sweeps.reducers.reducer import LOGITS, Need, Reducer


@contextmanager
def feeding(lm: Decoder, reducers: Sequence[Reducer], fast: Fast | None = None) -> Iterator[Callable[[Batch], None]]:
    """While inside, the function given runs a batch, exactly or fast, and feeds all reducers."""
    wanting: dict[Need, list[Reducer]] = {}
    for reducer in reducers:
        for need in dict.fromkeys(reducer.needs):
            wanting.setdefault(need, []).append(reducer)
    logits = wanting.pop(LOGITS, [])
    under_way: list[Batch] = []
    waiting: set[Need] = set()

    def callback(need: Need) -> Callback:
        point, layer = need

        def look(tensor: Tensor) -> None:
            for reducer in wanting[need]:
                reducer.see(point, layer, tensor, under_way[0])
            waiting.discard(need)
            if not waiting and not logits:
                raise Stop

        return look

    with quickened(lm, fast), in_pieces(lm), attach_hooks(lm, {need: callback(need) for need in wanting}) as current:

        @torch.no_grad()
        def feed(batch: Batch) -> None:
            under_way[:] = [batch]
            waiting.update(wanting)
            if wanting or logits:
                tokens = batch.tokens.to(lm.device)
                arguments = forward_arguments(lm, batch.mask.to(tokens)) | current.arguments
                with memory_guard(f"a batch of {tokens.numel()} tokens"), suppress(Stop):
                    if logits:
                        out = lm.hf(tokens, **arguments).logits
                        for reducer in logits:
                            reducer.see(*LOGITS, out, batch)
                    else:
                        body = lm.hf.get_decoder() if hasattr(lm.hf, "get_decoder") else lm.hf
                        body(tokens, **arguments)
            for reducer in reducers:
                reducer.update(batch)

        yield feed

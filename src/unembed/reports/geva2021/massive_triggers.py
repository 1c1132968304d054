"""Find the positions of a text with massive activations, so that no trigger and no random prefix ends there.

At such a position the residual stream is many times longer than at others. To test all positions, the model would have
to read the whole text again. Two facts, observed on the random prefixes that were already measured, limit this work:
massive activations occur near the start of a text, and they appear in some layer and remain in the next ones. Therefore
only prefixes are read that are not longer than the longest massive one among the random prefixes, and only up to the
layer by which all of those are massive.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int

from unembed.corpus.batches import bucketed
from unembed.corpus.token_stream import TokenStream
from unembed.memories.massive_activations import MASSIVE, massive_positions
from unembed.models.decoder import Decoder
from unembed.stream.run import run


def massive_in_text(
    lm: Decoder,
    text: TokenStream,
    prefix_lengths: Int[np.ndarray, " drawn"],
    stream_lengths: Float[np.ndarray, "layer drawn"],
    tokens_per_batch: int = 2048,
) -> Int[np.ndarray, " position"]:
    """Return the positions of a text with massive activations, in increasing order.

    Args:
        prefix_lengths: the number of text tokens of prefixes drawn at random.
        stream_lengths: the length of the residual stream after each layer, at the end of each of these prefixes. A
            position is massive if its stream is more than `MASSIVE` times as long as their median, in any tested layer.

    Memory: the streams of the tested layers for one batch.
    """
    massive = massive_positions(stream_lengths)
    if not massive.any():
        return np.empty(0, dtype=np.int64)
    limits = torch.from_numpy(MASSIVE * np.median(stream_lengths, axis=1))[:, None, None]
    so_far = np.logical_or.accumulate(stream_lengths[:, massive] > limits[:, 0].numpy(), axis=0)
    layers = range(int(so_far.all(axis=1).argmax()) + 1)
    every = text.prefix_positions()
    near = every[text.prefix_lengths(every) <= prefix_lengths[massive].max()]
    found = np.zeros(len(text), dtype=bool)
    for batch in bucketed(text.segments_up_to(near), tokens_per_batch, 64):
        streams = run(lm, batch.tokens, "resid_post", logits=False, layers=layers)["resid_post"]
        longer = (streams.float().norm(dim=-1).cpu() > limits[: len(layers)]).any(dim=0)
        found[batch.positions[longer & batch.counted].numpy()] = True
    return near[found[near]]

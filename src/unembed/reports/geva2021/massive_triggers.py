"""Find the positions of a text with massive activations, so that no trigger and no random prefix ends there.

At such a position the norm of the residual stream is many times larger than at others. Testing all positions would mean
running the model on the whole text again. Two facts, observed on the random prefixes that were already measured, limit
this work: massive activations occur near the start of a text, and once they appear in a layer, they remain in the next
ones. The model is therefore run only on short prefixes, up to the length of the longest random prefix with massive
activations, and only up to the layer after which all such random prefixes have them.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int

from unembed.corpus.batches import bucketed
from unembed.corpus.token_stream import TokenStream
from unembed.models.decoder import Decoder
from unembed.stream.massive_activations import MASSIVE, massive_positions
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
        stream_lengths: the norm of the residual stream after each layer, at the end of each of these prefixes. A
            position of the text has massive activations if the norm there is more than `MASSIVE` times the median of
            these norms in any tested layer.

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

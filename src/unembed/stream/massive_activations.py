"""Find positions with massive activations, at which the residual stream is many times longer than at other positions.

In many models this is the first token of a text. A mean over positions then says little about the others, so analyses
that average over positions leave such positions out.

Source: Sun et al. 2024, "Massive Activations in Large Language Models".
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unembed.corpus.segments import Batch
from unembed.models.decoder import Decoder
from unembed.stream.run import run

MASSIVE = 10
"""A position has massive activations if its stream is longer than this many times the layer's median length."""
LEFT_OUT = f"positions left out (stream over {MASSIVE} times the layer's median)"
"""The label under which provenances and reports give the number of these positions."""


def massive_positions(lengths: Float[np.ndarray, "layer position"]) -> Bool[np.ndarray, " position"]:
    """Mark positions whose stream is more than `MASSIVE` times as long as the layer's median, in any layer.

    Args:
        lengths: the length of the stream after each layer, at positions drawn at random.
    """
    medians = np.median(lengths, axis=1, keepdims=True)
    return np.any(lengths > MASSIVE * medians, axis=0)


def massive_ratios(stream: Float[Tensor, "layer pos d_model"]) -> Float[Tensor, "layer pos"]:
    """Return, for each layer and position of one text, the stream's length over the layer's median; 0 up to `MASSIVE`.

    Of an even number of positions the lower of the two middle lengths is the median, so two positions are enough to
    find that one is massive.
    """
    lengths = torch.linalg.vector_norm(stream, dim=-1, dtype=torch.float32)
    ratios = lengths / lengths.median(dim=1, keepdim=True).values
    return ratios.where(ratios > MASSIVE, 0.0)


def massive_in_batch(lm: Decoder, batch: Batch) -> Bool[Tensor, "batch pos"]:
    """Mark the counted positions of a batch that have massive activations after any layer.

    Memory: the stream after each layer, layers * batch * pos * d_model numbers.
    """
    marked = torch.zeros_like(batch.counted)
    if lm.n_layers and batch.n_counted:
        found = run(lm, batch.tokens, "resid_post", attention_mask=batch.mask, logits=False)["resid_post"]
        lengths = torch.linalg.vector_norm(found, dim=-1, dtype=torch.float32).cpu()
        marked[batch.counted] = torch.from_numpy(massive_positions(lengths[:, batch.counted].numpy()))
    return marked


def stream_lengths(lm: Decoder, prefixes: Iterable[np.ndarray]) -> Float[np.ndarray, "layer prefix"]:
    """Return the length of the stream after each layer at the last position of each prefix.

    Args:
        prefixes: token ids of each prefix; the model runs once for each.
    """
    rows = (torch.from_numpy(one.astype(np.int64))[None] for one in prefixes)
    ends = [run(lm, row, "resid_post", logits=False)["resid_post"][:, 0, -1] for row in rows]
    return np.stack([end.float().norm(dim=-1).cpu().numpy() for end in ends], axis=1)

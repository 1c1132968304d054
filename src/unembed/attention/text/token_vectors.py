"""Compute the vector that the attention of each layer reads at a token that stands alone, after the layers below.

The stream is taken from a forward pass over the tokenizer's special tokens followed by the token. The token does not
come first, because in many models the activations at the first position are unlike those at any other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.attention.behaviour.repeated_pattern import special_front
from unembed.attention.weights.folded_weights import at_least_float32, embedding
from unembed.attention.weights.stream_gains import changes_stream
from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.models.structure.structure import Block
from unembed.names import HeadBasis
from unembed.stream.run import run

_AT_ONCE = 512
"""Number of tokens in one forward pass."""


@torch.no_grad()
def token_vectors(
    lm: Decoder, ids: Int[Tensor, " token"], layers: Sequence[int], basis: HeadBasis
) -> dict[int, Float[Tensor, "token d_model"]]:
    """Return, for each layer, the stream that its attention reads at each token, divided by the scale of its norm.

    In the first layer this is the embedding, without positions. The norm's gain is not applied, because folded circuits
    include it.

    Args:
        layers: layers with attention.
        basis: the basis of the circuits that will be applied to the vectors.

    Raises:
        Unsupported: blocks rescale the stream, or the model has several streams.

    Memory: a vector for each token and layer.
    """
    if lm.structure.streams is not None or changes_stream(lm):
        raise Unsupported(
            f"vectors of single tokens in {lm.name}",
            why="its blocks do not only add to the residual stream: they rescale it, or mix several streams",
        )
    later, ids, front = [n for n in layers if n > 0], ids.to(lm.device), _front(lm)
    found = {n: list[Tensor]() for n in later}
    for some in ids.split(_AT_ONCE) if later else ():
        prompts = torch.cat([front.expand(len(some), -1), some[:, None]], dim=1)
        seen = run(lm, prompts, "resid_pre", logits=False, layers=later)
        for n in later:
            found[n].append(seen.at("resid_pre", n)[:, -1])
    streams = {n: torch.cat(parts) for n, parts in found.items()}
    if 0 in layers:
        streams[0] = embedding(lm, basis, ids, centre=True)
    return {n: _through_norm(lm.structure.blocks[n], streams[n]) for n in layers}


def _front(lm: Decoder) -> Int[Tensor, " special"]:
    """Return the tokens to put before a token: those that the tokenizer adds, else its beginning-of-text token."""
    front, begin = special_front(lm), getattr(lm.tokenizer, "bos_token_id", None)
    if not len(front) and isinstance(begin, int) and begin < lm.d_vocab:
        front = torch.tensor([begin])
    return front.to(lm.device)


def _through_norm(block: Block, rows: Float[Tensor, "token d_model"]) -> Float[Tensor, "token d_model"]:
    norm = block.attention.pre_norm
    return at_least_float32(rows) if norm is None else at_least_float32(rows) / norm.scale(rows)

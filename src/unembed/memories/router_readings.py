"""Compute from a router's weights which token embeddings it scores highest for each expert."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.models.offload import parameter
from unembed.validation import positive_int

_ROWS = 8192


@torch.no_grad()
def router_tokens(
    lm: Decoder, layer: int, k: int = 10, *, show_unlearned: bool = False
) -> tuple[Int[Tensor, "expert k"], Float[Tensor, "expert k"]]:
    """Return the tokens whose embeddings the router of a layer scores highest for each expert.

    The score is the router's product with the token's embedding after the layer's norm, minus the mean over experts,
    which cancels in a softmax. In later layers the stream contains more than the embedding, so this is only the direct
    path from the embedding to the router.

    Args:
        k: number of tokens for each expert.
        show_unlearned: include tokens that the model never learned.

    Raises:
        Unsupported: the layer has no experts, or its router is not a single matrix.

    Memory: 8,192 embeddings, and one score for each expert and token.
    """
    site = lm.feed_forward(lm.layer(layer))
    if site.experts is None or site.experts.router is None:
        why = "its FFN is not a mixture of experts" if site.experts is None else "it is not a single matrix"
        raise Unsupported(f"the router of layer {layer}", why=why)
    router = parameter(site.experts.router)
    assert router is not None
    scores = []
    for start in range(0, lm.d_vocab, _ROWS):
        x = lm.weights.W_E[start : start + _ROWS] * (lm.structure.embedding_scale or 1.0)
        x = x if site.pre_norm is None else site.pre_norm.normed(x)
        scores.append((x.to(router) @ router.T).float())
    found = torch.cat(scores).T
    found = found - found.mean(dim=0, keepdim=True)
    if not show_unlearned:
        found[:, lm.unlisted.to(found.device)] = -torch.inf
    best = found.topk(min(positive_int("k", k), lm.d_vocab), dim=1)
    return best.indices, best.values

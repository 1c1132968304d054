"""What training does so that memories can be read: few fire, none is dead, and values lie near groups of tokens."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unembed.training.networks import Wren
from unembed.training.precision import PRODUCTS

NEAREST = 20  # tokens that a value is compared with, as many as a reading shows
NEAR = 0.3  # their mean cosine from which a value is near enough; of random vectors it is 0.2, of tokens 0.43
FIRST_PIECE = 257  # ids before it: the end-of-text token and the 256 bytes
ONE_IN = 4  # of a layer's memories are compared in one update
REVIVED_RATE = 0.01  # share of the positions at which a revived memory fires


def distance_of(values: Tensor, embeddings: Tensor) -> Tensor:
    """How far values are from groups of tokens: what their mean cosine with their nearest tokens lacks, on average.

    Embeddings are taken relative to their mean, which changes no probability. A value near enough costs nothing.

    Args:
        values: (n, d_model).
        embeddings: (tokens, d_model).
    """
    tokens = F.normalize(embeddings - embeddings.mean(0), dim=-1)
    cosines = (F.normalize(values, dim=-1).to(PRODUCTS) @ tokens.to(PRODUCTS).mT).float()  # (n, tokens)
    return (NEAR - cosines.topk(NEAREST, dim=-1).values.mean(-1)).relu().mean()


def add_distance(network: Wren, price: float, step: int) -> float:
    """Add the gradient of `price` times the distance of some values, of one layer of the upper half; the distance.

    Layers and memories take turns: `step` decides which these are.
    """
    upper = network.layers[len(network.layers) // 2 :]
    turn, layer = divmod(step, len(upper))
    weight = upper[layer].w_out.weight  # (d_model, d_mlp)
    embeddings = network.unembedding.detach()[FIRST_PIECE:]
    distance = distance_of(weight.mT[turn % ONE_IN :: ONE_IN], embeddings)
    (price * len(upper) * distance).backward()
    return distance.item()


@torch.no_grad()
def revive(network: Wren, rows: Tensor, *, seed: int = 0) -> list[int]:
    """Give memories that fire nowhere in a text the keys of random positions there; how many, by layer.

    A revived memory fires at one position in a hundred. Its value starts at a thousandth of its length, so the network
    computes nearly what it computed before; at zero, every revived value would be drawn to the same tokens.

    Args:
        network: changed in place.
        rows: token ids (n, context).
        seed: of the positions.
    """
    generator = torch.Generator().manual_seed(seed)
    revived = []
    reads: list[list[Tensor]] = [[] for _ in network.layers]
    handles = [
        block.ln_2.register_forward_hook(partial(_store, to)) for block, to in zip(network.layers, reads, strict=True)
    ]
    for part in rows.split(8):
        network.final_stream(part)
    for handle in handles:
        handle.remove()
    for block, parts in zip(network.layers, reads, strict=True):
        read = torch.cat(parts)  # (positions, d_model)
        fires = (block.w_in(read) > 0).any(0)
        dead = (~fires).nonzero().flatten()
        revived.append(len(dead))
        if not len(dead):
            continue
        positions = torch.randint(len(read), (len(dead),), generator=generator)
        length = block.w_in.weight[fires].norm(dim=1).median() if fires.any() else torch.tensor(1.0)
        keys = length * F.normalize(read[positions] - read.mean(0), dim=-1)
        block.w_in.weight[dead] = keys
        block.w_in.bias[dead] = -torch.stack([(read @ key).quantile(1 - REVIVED_RATE) for key in keys])
        block.w_out.weight[:, dead] *= 1e-3
    return revived


def _store(to: list[Tensor], module: nn.Module, given: tuple[Tensor, ...], read: Tensor) -> None:
    to.append(read.flatten(0, 1))

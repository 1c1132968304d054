"""What training does so that memories and layers can be read.

Few memories fire, none is dead, values lie near groups of tokens or promote what follows their triggers, and the logit
lens of the upper layers predicts the next token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.training.networks import Wren
from tools.training.precision import PRODUCTS

NEAREST = 20  # tokens that a value is compared with, as many as a reading shows
NEAR = 0.3  # their mean cosine from which a value is near enough; of random vectors it is 0.2, of tokens 0.43
FIRST_PIECE = 257  # ids before it: the end-of-text token and the 256 bytes
ONE_IN = 4  # of a layer's memories are compared in one update
LENS_ROWS = 8  # of a batch, on which the logit lens of a layer is measured
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


def upper_values(network: Wren) -> list[Tensor]:
    """The values (d_model, d_mlp) of each layer of the upper half."""
    return [block.w_out.weight for block in network.layers[len(network.layers) // 2 :]]


@contextmanager
def only_changing(values: Sequence[Tensor], changing: Sequence[Tensor]) -> Iterator[None]:
    """Give values (d_model, d_mlp) of each layer back what they were before, but for those that `changing` marks."""
    before = [weight.detach().clone() for weight in values]
    yield
    with torch.no_grad():
        for weight, earlier, change in zip(values, before, changing, strict=True):
            weight.copy_(torch.where(change, weight, earlier))


def add_agreement(network: Wren, price: float, rows: Tensor, step: int, changing: Sequence[Tensor]) -> float:
    """Add the gradient of `price` times the nats that a value, alone, needs for the token after its key's top trigger.

    The top trigger is where the memory is most active in the batch. Layers of the upper half take turns.
    Source: Geva et al. 2021, section 4.1.

    Args:
        network: gradients are added to the values of one layer, and to nothing else.
        price: of a nat; the mean over the values counts.
        rows: token ids (n, context + 1).
        step: decides which layer's turn it is.
        changing: for each layer of the upper half, which of its values (d_mlp,) have the price; those that are active
            nowhere in the batch have none.

    Returns:
        The mean nats.
    """
    n_upper = len(changing)
    index = len(network.layers) - n_upper + step % n_upper
    strongest = _coefficients(network, index, rows[:, :-1]).flatten(0, 1).max(0)
    chosen = (strongest.values > 0) & changing[step % n_upper]
    if not chosen.any():
        return 0.0
    follows = rows[:, 1:].flatten()[strongest.indices[chosen]]
    values = F.normalize(network.layers[index].w_out.weight.mT[chosen], dim=-1) * network.ln_f.weight.detach().norm()
    logits = (values.to(PRODUCTS) @ network.unembedding.detach().to(PRODUCTS).mT).float()  # (chosen, d_vocab)
    nats = F.cross_entropy(logits, follows)
    (price * n_upper * nats).backward()
    return nats.item()


def add_lens(network: Wren, price: float, rows: Tensor, step: int) -> float:
    """Add the gradient of `price` times the nats that the logit lens of a layer needs for the next token.

    Layers of the upper half but the last take turns. Norm and unembedding of the lens are constants.

    Args:
        network: gradients are added to this layer and those below it.
        price: of a nat a token; the mean over the tokens counts.
        rows: token ids (n, context + 1), of which the first `LENS_ROWS` are read.
        step: decides which layer's turn it is.

    Returns:
        The mean nats.
    """
    turns = range(len(network.layers) // 2, len(network.layers) - 1)
    rows = rows[:LENS_ROWS]
    with torch.autocast("cpu", torch.bfloat16, enabled=PRODUCTS is torch.bfloat16):
        stream = _stream(network, turns[step % len(turns)] + 1, rows[:, :-1]).float()
    norm = network.ln_f
    normed = F.layer_norm(stream, norm.normalized_shape, norm.weight.detach(), norm.bias.detach(), norm.eps)
    logits = (normed.to(PRODUCTS) @ network.unembedding.detach().to(PRODUCTS).mT).float()  # (rows, pos, d_vocab)
    nats = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    (price * len(turns) * nats).backward()
    return nats.item()


def _stream(network: Wren, index: int, ids: Tensor) -> Tensor:
    """What layer `index` reads (rows, pos, d_model)."""
    x = network.wte(ids) + network.wpe.weight[: ids.shape[1]]
    for block in network.layers[:index]:
        x = block(x)
    return x


@torch.no_grad()
def _coefficients(network: Wren, index: int, ids: Tensor) -> Tensor:
    """Of the memories (rows, pos, d_mlp) of a layer."""
    block = network.layers[index]
    with torch.autocast("cpu", torch.bfloat16, enabled=PRODUCTS is torch.bfloat16):
        x = _stream(network, index, ids)
        normed = block.ln_1(x)
        return F.relu(block.w_in(block.ln_2(x + block.attention(normed, normed))))


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

"""Loss and gradients of one batch: rows a few at a time, logits a few hundred tokens at a time.

A batch is cut into two halves whose gradients are summed separately and added last, so its result has the same bits
whether one process computes both halves or two processes one each.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.training.networks import AttentionOnly, Wren
from tools.training.precision import PRODUCTS

N_HALVES = 2
ROW_TOKENS = 2048  # tokens whose activations are in memory at once
LOGIT_TOKENS = 512  # tokens whose logits are in memory at once


class Objective(NamedTuple):
    """The loss of half a batch, as shares of the batch's means."""

    nats: float
    firing: float


class Gradients:
    """Adds gradients of a network to its parameters' `grad`; `compiled` goes through `torch.compile`."""

    def __init__(self, network: Wren | AttentionOnly, *, compiled: bool) -> None:
        self.network = network
        self._final_stream = torch.compile(final_stream, dynamic=False) if compiled else final_stream
        self._cross_entropy = torch.compile(cross_entropy, dynamic=False) if compiled else cross_entropy

    def add(self, rows: Tensor, *, sparsity: float, share: float) -> Objective:
        """Add the gradients of `share` times the mean over these rows (n, context + 1).

        The mean is of the cross entropy in nats, plus `sparsity` times how many memories fire. Every token but the
        first of a row is predicted from those before it.
        """
        if not len(rows):
            return Objective(0.0, 0.0)
        parts = rows.split(max(1, ROW_TOKENS // (rows.shape[1] - 1)))
        nats = firing = 0.0
        for part in parts:
            part_share = share * len(part) / len(rows)
            stream, fire = self._final_stream(self.network, part[:, :-1], sparsity > 0)
            gradient = torch.empty_like(stream)
            nats += part_share * self._add_unembedding(stream.detach(), part[:, 1:], gradient, part_share)
            if fire is None:
                stream.backward(gradient)
            else:  # one pass through the network for both
                price = torch.full_like(fire, sparsity * part_share)
                torch.autograd.backward([stream, fire], [gradient, price])
                firing += part_share * fire.item()
        return Objective(nats, firing)

    def _add_unembedding(self, stream: Tensor, targets: Tensor, gradient: Tensor, share: float) -> float:
        """Mean nats; the unembedding's gradient is added, the stream's written into `gradient`."""
        unembedding = self.network.unembedding
        if unembedding.grad is None:
            unembedding.grad = torch.zeros_like(unembedding)
        weight = unembedding.detach().to(PRODUCTS)
        flat, targets, out = stream.flatten(0, 1), targets.flatten(), gradient.view(-1, gradient.shape[-1])
        scale, nats = torch.tensor(share / len(flat)), 0.0
        for start in range(0, len(flat), LOGIT_TOKENS):
            chunk = slice(start, start + LOGIT_TOKENS)
            total, of_stream, of_weight = self._cross_entropy(flat[chunk], weight, targets[chunk], scale)
            out[chunk] = of_stream
            unembedding.grad += of_weight
            nats += total.item()
        return nats / len(flat)


class OneProcess:
    """The gradients of batches: both halves one after the other, in this process."""

    def __init__(self, network: Wren | AttentionOnly, *, compiled: bool) -> None:
        self.network, self._gradients = network, Gradients(network, compiled=compiled)

    def add(self, rows: Tensor, *, sparsity: float) -> Objective:
        """Write the gradients of the batch's mean into `grad` of the parameters."""
        first, second = rows.tensor_split(N_HALVES)
        a = self._gradients.add(first, sparsity=sparsity, share=len(first) / len(rows))
        grads = gradients_of(self.network)
        self.network.zero_grad(set_to_none=True)
        b = self._gradients.add(second, sparsity=sparsity, share=len(second) / len(rows))
        for parameter, grad in zip(self.network.parameters(), grads, strict=True):
            parameter.grad = grad + parameter.grad if parameter.grad is not None else grad
        return Objective(a.nats + b.nats, a.firing + b.firing)

    def close(self) -> None:
        """Nothing to end."""


def gradients_of(network: Wren | AttentionOnly) -> list[Tensor]:
    """The gradient of every parameter; zeros where there is none."""
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in network.parameters()]


def final_stream(network: Wren | AttentionOnly, ids: Tensor, with_firing: bool) -> tuple[Tensor, Tensor | None]:
    """What the unembedding reads (batch, pos, d_model), and how many memories of a layer fire if requested."""
    firing: list[Tensor] = []
    with torch.autocast("cpu", torch.bfloat16, enabled=PRODUCTS is torch.bfloat16):
        stream = network.final_stream(ids, firing if with_firing else None)
    return stream.float(), torch.stack(firing).mean() if firing else None


def cross_entropy(stream: Tensor, weight: Tensor, targets: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of nats, and the gradients of `scale` times it for the stream and the unembedding matrix.

    Args:
        stream: (tokens, d_model).
        weight: (d_vocab, d_model), in the dtype of the products.
        targets: (tokens,).
        scale: a number.
    """
    x = stream.to(PRODUCTS)
    logits = (x @ weight.mT).float()
    log_total = logits.logsumexp(-1, keepdim=True)
    nats = (log_total - logits.gather(-1, targets[:, None])).sum()
    is_target = torch.arange(weight.shape[0]) == targets[:, None]
    error = (((logits - log_total).exp() - is_target.float()) * scale).to(PRODUCTS)  # (tokens, d_vocab)
    return nats, (error @ weight).float(), (error.mT @ x).float()


@torch.no_grad()
def mean_nats(network: Wren | AttentionOnly, rows: Tensor) -> float:
    """Cross entropy per token of rows (n, context + 1), as training measures it."""
    total = 0.0
    for row in rows:
        with torch.autocast("cpu", torch.bfloat16, enabled=PRODUCTS is torch.bfloat16):
            stream = network.final_stream(row[None, :-1])
            logits = F.linear(stream[0], network.unembedding)
        total += F.cross_entropy(logits.float(), row[1:], reduction="sum").item()
    return total / (rows.shape[0] * (rows.shape[1] - 1))

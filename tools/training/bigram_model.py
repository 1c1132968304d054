"""A model without layers from the bigram counts of its text, instead of from the text itself.

Without layers the prediction depends on the last token alone, so the loss over a text is the loss over its bigram
counts: sum_i n_i KL(next tokens after i || softmax(e_i W_U)) and a constant. Every update uses all tokens that ever
followed its tokens, which takes minutes where batches of text take hours.

It begins from a truncated decomposition of the bigrams' pointwise mutual information, with token frequencies in a
separate direction.

Source: Elhage et al. 2021, "Zero-layer transformers"; Levy & Goldberg 2014 for the decomposition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tools.training.networks import AttentionOnly, build
from tools.training.recipes import Recipe
from tools.training.windows import EncodedCorpus

_SHIFT = 1.0
"""Length of the token frequencies' direction in every embedding, before training."""
_OVERSAMPLED = 16


def bigram_counts(corpus: EncodedCorpus, d_vocab: int) -> tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"]]:
    """Pairs of adjacent tokens as `first * d_vocab + second`, sorted, and how often each occurs.

    Documents form one sequence, each ended by the end-of-text token, as in training on batches.
    """
    tokens = corpus.tokens.astype(np.int64)
    return np.unique(tokens[:-1] * d_vocab + tokens[1:], return_counts=True)


def fit_bigrams(
    codes: Int[np.ndarray, " pair"],
    counts: Int[np.ndarray, " pair"],
    recipe: Recipe,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[AttentionOnly, list[dict[str, Any]]]:
    """The network of no layers whose embedding times unembedding predicts these bigrams, and its loss curve.

    Args:
        codes: pairs, see `bigram_counts`.
        counts: how often each occurs.
        recipe: sizes, updates, learning rate; a batch holds `windows` source tokens.
        progress: called with every row of the curve, one for ten updates; its `tokens` are the pairs counted.

    Memory: logits (windows, d_vocab) and their gradients.
    """
    d_vocab = recipe.shape.d_vocab
    random = torch.Generator().manual_seed(recipe.seed)
    first, second = torch.from_numpy(codes // d_vocab), torch.from_numpy(codes % d_vocab)
    n = torch.from_numpy(counts.astype(np.float32))
    table = torch.sparse_coo_tensor(torch.stack([first, second]), n, (d_vocab, d_vocab), check_invariants=True)
    table = table.coalesce()
    followed = torch.zeros(d_vocab).index_add_(0, first, n)
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        network = build(recipe.shape)
        assert isinstance(network, AttentionOnly)
        _begin(network, table, followed)
    E, U = network.wte.weight, network.lm_head.weight
    adam = torch.optim.Adam([E, U], lr=recipe.adam_lr, betas=(0.9, 0.98), eps=1e-10)
    ends = torch.searchsorted(first, torch.arange(d_vocab + 1))
    # Rare tokens are drawn more often than they occur, with a smaller weight: each has its own embedding to learn.
    drawn = followed.sqrt()
    curve = []
    for step in range(recipe.steps):
        rows = torch.multinomial(drawn, recipe.phase(step).windows, generator=random).sort().values
        weights = followed[rows] / drawn[rows]
        lengths = (ends[rows + 1] - ends[rows]).tolist()
        at = torch.cat([torch.arange(int(s), int(s) + k) for s, k in zip(ends[rows], lengths, strict=True)])
        row = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(lengths))
        logits = E[rows] @ U.T
        nats = torch.zeros(len(rows)).index_add_(0, row, n[at] * logits[row, second[at]]) / followed[rows]
        losses = logits.logsumexp(dim=1) - nats
        loss = (losses * weights).sum() / weights.sum()
        adam.zero_grad(set_to_none=True)
        loss.backward()
        for group in adam.param_groups:
            group["lr"] = recipe.adam_lr * recipe.lr_factor(step)
        adam.step()
        if (step + 1) % 10 == 0 or step + 1 == recipe.steps:
            curve.append({"step": step + 1, "tokens": int(counts.sum()), "loss": round(float(loss.detach()), 4)})
            if progress is not None:
                progress(curve[-1])
    return network, curve


@torch.no_grad()
def _begin(network: AttentionOnly, table: Tensor, followed: Float[Tensor, " d_vocab"]) -> None:
    """E W_U' = positive pointwise mutual information, at the network's width, plus the logs of the frequencies."""
    d_model = network.shape.d_model
    counts = table.values()
    following = torch.zeros_like(followed).index_add_(0, table.indices()[1], counts)
    total = counts.sum()
    first, second = table.indices()
    information = (counts * total / (followed[first] * following[second])).log().clamp_min(0)
    sparse = torch.sparse_coo_tensor(table.indices(), information, table.shape, check_invariants=True)
    rank = min(d_model - 1, len(followed))
    U, S, V = torch.svd_lowrank(sparse, q=min(rank + _OVERSAMPLED, len(followed)), niter=2)
    root = S[:rank].sqrt()
    network.wte.weight[:, 1 : rank + 1] = U[:, :rank] * root
    network.lm_head.weight[:, 1 : rank + 1] = V[:, :rank] * root
    network.wte.weight[:, 0] = _SHIFT
    logs = ((following + 0.5) / total).log()
    network.lm_head.weight[:, 0] = (logs - logs.mean()) / _SHIFT

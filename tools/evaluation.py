"""What a trained model is worth: bits per byte of unseen text, and whether heads look where induction needs."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel


@torch.no_grad()
def bits_per_byte(model: PreTrainedModel, tokens: np.ndarray, n_bytes: int, *, context: int) -> float:
    """Bits for every token of a line of ids, per byte of its text; each but the first few sees half a context.

    Windows of `context` tokens, half overlapping; only the second half of each counts, so no token is judged with a
    short memory. Bits for the end-of-text tokens are counted, their bytes are not, which makes the number a little too
    high.
    """
    ids = torch.from_numpy(np.concatenate([[0], tokens]).astype(np.int64))  # begins after an end-of-text token
    half = context // 2
    nats, done = 0.0, 0
    for start in range(0, max(1, len(ids) - 1 - half), half):
        stop = min(start + context, len(ids) - 1)
        nats += _losses(model, ids[None, start : stop + 1], stop - done).sum().item()
        done = stop
    return nats / math.log(2) / n_bytes


@torch.no_grad()
def prefix_matching_scores(
    model: PreTrainedModel, *, period: int = 64, rows: int = 8, first_id: int = 257, seed: int = 0
) -> tuple[Float[Tensor, "layer head"], Float[Tensor, "layer head"]]:
    """Attention on random tokens that repeat: to what followed the earlier occurrence, and to the token before.

    Means over the second repetition. Tokens are drawn evenly from the pieces, so nothing but the repetition helps.

    Source: Olsson et al. 2022, "In-context learning and induction heads", prefix-matching score.
    """
    generator = torch.Generator().manual_seed(seed)
    once = torch.randint(first_id, model.config.vocab_size, (rows, period), generator=generator)
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    patterns = torch.stack(model(torch.cat([once, once], dim=1), output_attentions=True).attentions)
    model.set_attn_implementation(before or "eager")
    dst = torch.arange(period, 2 * period)
    induction = patterns[..., dst, dst - period + 1].mean(dim=(1, 3))
    previous = patterns[..., dst, dst - 1].mean(dim=(1, 3))
    return induction, previous


@torch.no_grad()
def repetition_gain(
    model: PreTrainedModel, *, period: int = 64, rows: int = 8, first_id: int = 257, seed: int = 0
) -> float:
    """By how many nats a random sequence is cheaper the second time than the first."""
    generator = torch.Generator().manual_seed(seed)
    once = torch.randint(first_id, model.config.vocab_size, (rows, period), generator=generator)
    losses = _losses(model, torch.cat([once, once], dim=1))
    return (losses[:, : period - 1].mean() - losses[:, period:].mean()).item()


def _losses(model: PreTrainedModel, ids: Tensor, last: int | None = None) -> Float[Tensor, "row pos"]:
    """Of every token but the first, or of the `last` ones: logits of the others are never made."""
    last = ids.shape[1] - 1 if last is None else last
    logits = model(ids[:, :-1], logits_to_keep=last).logits.float()
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, -last:], reduction="none")

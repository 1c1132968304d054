"""One head's whole pattern on a sequence repeated twice, with the stripe whose mean is the induction score."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.attention.behaviour.head_scores import repeated_tokens
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.stream.run import run


@dataclass(frozen=True, eq=False)
class RepeatedPattern:
    """A head's pattern on a sequence repeated twice.

    Attributes:
        tokens: special tokens in front, then the sequence twice.
        length: tokens of the sequence.
        pattern: attention weights, float64.
        stripe: in the repetition, each destination and the position after the earlier occurrence of its token.
        score: mean attention on the stripe.
        uniform: the score of uniform attention.
    """

    tokens: Int[Tensor, " pos"]
    length: int
    pattern: Float[Tensor, "dst src"]
    stripe: list[tuple[int, int]]
    score: float
    uniform: float


@torch.no_grad()
def repeated_pattern(lm: Decoder, layer: int, head: int, length: int, seed: int = 0, text: str = "") -> RepeatedPattern:
    """The pattern of a head on random tokens, or a text, repeated twice.

    Args:
        length: random tokens before the repetition; fewer where the context is shorter.
        text: repeated instead of random tokens, truncated to the context.

    Raises:
        OutOfRange: there is no such head.
        InvalidInput: the text is a single token, so nothing follows its earlier occurrence.
    """
    layer, head = lm.layer_and_head(layer, head)
    if lm.n_ctx is not None:
        length = max(2, min(length, lm.n_ctx // 2 - 2))
    ids, front = repeated_tokens(lm, 1, length, seed)
    if text:
        once = lm.encode(text)[:, front:]
        once = once if lm.n_ctx is None else once[:, : (lm.n_ctx - front) // 2]
        length = once.shape[1]
        if length < 2:
            raise InvalidInput(f"text {text!r}", why="it is a single token", instead="Write at least two tokens")
        ids = torch.cat([ids[:, :front], once.to(ids.device), once.to(ids.device)], dim=1)
    pattern = run(lm, ids, "pattern", layers=[layer], logits=False).at("pattern", layer)[0, head].double().cpu()
    stripe = [(dst, dst - length + 1) for dst in range(front + length, ids.shape[1])]
    return RepeatedPattern(
        ids[0],
        length,
        pattern,
        stripe,
        sum(float(pattern[dst, src]) for dst, src in stripe) / len(stripe),
        sum(1 / (dst + 1) for dst, _ in stripe) / len(stripe),
    )

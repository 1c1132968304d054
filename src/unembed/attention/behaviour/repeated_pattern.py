"""Build sequences in which the same tokens occur twice, and show a head's attention pattern on such a sequence.

In the second half, an induction head attends to the token after the earlier occurrence. These pairs of positions form a
stripe of the pattern; the mean weight on it is the induction score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Tensor

from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.options import Option
from unembed.results.lists import lower_triangle
from unembed.stream.run import run
from unembed.validation import as_int, positive_int, valid_seed

Sequences = Annotated[int, Option("Number of random sequences, each of which is repeated once.", low=2)]
Length = Annotated[
    int | None,
    Option("Number of tokens before the repetition; by default 64, or half the context if that is less.", low=2),
]


def repeated_tokens(
    lm: Decoder, n_sequences: int = 50, length: int | None = None, seed: int = 0
) -> tuple[Int[Tensor, "sequence pos"], int]:
    """Draw random token sequences, each repeated once, after the special tokens that the tokenizer puts first.

    Tokens are drawn evenly from those that the model learned. Returns the token ids, and the number of special tokens.

    Raises:
        InvalidInput: the sequence is too short to repeat, or its repetition is longer than the context.
    """
    n_sequences, seed = positive_int("n_sequences", n_sequences), valid_seed(seed)
    front = special_front(lm)
    if length is None:
        length = 64 if lm.n_ctx is None else min(64, (lm.n_ctx - len(front)) // 2)
    length = as_int("length", length)
    if length < 2:
        raise InvalidInput(f"{n_sequences} sequences of 2 x {length} tokens", why="there is nothing to repeat")
    if lm.n_ctx is not None and len(front) + 2 * length > lm.n_ctx:
        raise InvalidInput(
            f"sequences of 2 x {length} tokens",
            why=f"{lm.name} has a context of {lm.n_ctx}",
            instead=f"Use a length of at most {(lm.n_ctx - len(front)) // 2}",
        )
    learned = (~lm.unlearned).nonzero()[:, 0]
    learned = learned if len(learned) else torch.arange(lm.d_vocab)
    drawn = torch.randint(len(learned), (n_sequences, length), generator=torch.Generator().manual_seed(seed))
    once = learned.cpu()[drawn]
    return torch.cat([front.expand(n_sequences, -1), once, once], dim=1).to(lm.device), len(front)


def special_front(lm: Decoder) -> Int[Tensor, " special"]:
    """The special tokens that this tokenizer puts before every text."""
    if lm.tokenizer is None:
        return torch.empty(0, dtype=torch.long)
    ids, special = lm.encode("a")[0].cpu(), set(lm.tokenizer.all_special_ids)
    n = next((i for i, t in enumerate(ids.tolist()) if t not in special), 0)
    return ids[:n]


SCHEMA = "unembed.induction/1"
"""Name and version of the JSON format; the version rises when a field changes its meaning or is removed."""


@dataclass(frozen=True)
class InductionView:
    """One head's attention pattern on a text that is repeated once, and the position pairs of the induction score."""

    schema: str
    layer: int
    head: int
    tokens: list[str]
    length: int
    """Number of tokens of the text before it is repeated."""
    weights: list[list[float]]
    """Attention weights: for each destination, those of the sources up to it."""
    stripe: list[tuple[int, int]]
    """Pairs (destination in the repetition, position after the earlier occurrence of the same token)."""
    score: float
    """The mean attention weight of the pairs in `stripe`."""
    chance: float
    """The mean weight that uniform attention would give to the pairs in `stripe`."""


@torch.no_grad()
def induction_view(lm: Decoder, layer: int, head: int, length: int, seed: int = 0, text: str = "") -> InductionView:
    """Return the attention pattern of a head on random tokens, or on a text, repeated once.

    Args:
        length: number of random tokens before the repetition; fewer if the context is shorter.
        text: a text to repeat instead of random tokens; it is truncated so that both copies fit in the context.

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
    return InductionView(
        SCHEMA,
        layer,
        head,
        lm.token_strings(ids[0]),
        length,
        lower_triangle(pattern),
        stripe,
        sum(float(pattern[dst, src]) for dst, src in stripe) / len(stripe),
        sum(1 / (dst + 1) for dst, _ in stripe) / len(stripe),
    )

"""Measure the perplexity of a text, to find how much an edit or a filter harms the prediction of ordinary text.

The tokens are cut into windows that do not overlap. Each window is a separate forward pass; its first token is not
scored. The perplexity is exp(total surprisal / number of scored tokens). The released code of Geva et al. 2022 weights
each window's mean by its length, which gives the same result for windows of equal length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.corpus.readers import SHIPPED
from unembed.errors import InvalidInput, NotFinite
from unembed.models.decoder import Decoder, require_decoder
from unembed.stream.hooks import attach_hooks, memory_guard
from unembed.stream.interventions import Edit
from unembed.stream.run import cache_argument
from unembed.validation import positive_int

Scores = Callable[[Int[Tensor, "batch pos"]], Float[Tensor, "batch pos d_vocab"]]
"""A function from token ids to next-token logits (or log-probabilities up to a constant) at every position."""


def default_text() -> str:
    """Return the validation text of WikiText, which ships with the package."""
    return SHIPPED.read_text(encoding="utf-8")


def windows(
    lm: Decoder, text: str, *, window: int | None = None, max_tokens: int | None = None
) -> Int[Tensor, "window pos"]:
    """Encode a text and cut it into windows; tokens after the last full window are dropped.

    A text that is shorter than one window becomes one shorter window.

    Args:
        window: number of tokens in a window; None for 512. It is limited by the model's context length.
        max_tokens: use at most this number of tokens; None for all.

    Raises:
        InvalidInput: the text has fewer than two tokens.
    """
    lm = require_decoder(lm)
    size = min(positive_int("window", window or 512, 2), lm.n_ctx or 10**9)
    # Only the beginning of a long text is encoded, enough for `max_tokens` tokens of up to 16 characters on average.
    ids = lm.vocabulary.encode(text if max_tokens is None else text[: 16 * max_tokens + 64])[0][:max_tokens]
    if len(ids) < 2:
        raise InvalidInput("perplexity of a text of fewer than two tokens", instead="Give a longer text")
    size = min(size, len(ids))
    return ids[: len(ids) // size * size].view(-1, size)


@torch.no_grad()
def perplexity(
    lm: Decoder,
    rows: Int[Tensor, "window pos"],
    edits: Sequence[Edit] = (),
    *,
    scores: Scores | None = None,
) -> float:
    """Return the perplexity of the tokens in the windows, optionally with edits or with other logits.

    Args:
        rows: the result of `windows`.
        edits: changes to activations at every position.
        scores: a function that returns logits to use instead of the model's, such as those of a filter.

    Returns:
        exp(nats per token); infinity if a token has probability zero.

    Raises:
        NotFinite: the logits overflow under the edits.

    Memory: logits of 4,096 tokens at a time.
    """
    lm = require_decoder(lm)
    if isinstance(rows, str):
        raise InvalidInput(
            "perplexity of a text", why="it is measured on windows of tokens", instead="Give windows(lm, text)"
        )
    next_token_logits: Scores = scores or (lambda ids: lm.hf(ids, **cache_argument(lm)).logits)
    total = torch.zeros((), dtype=torch.float64)
    # The lock is needed even without edits; otherwise hooks that another thread attaches to the model would run in
    # this forward pass.
    with lm.lock, attach_hooks(lm, {}, edits) if edits else nullcontext(), memory_guard("perplexity"):
        for ids in rows.to(lm.device).split(max(1, 4096 // rows.shape[1])):
            logits = next_token_logits(ids)[:, :-1].float()
            if bool(torch.isnan(logits).any()) or bool(torch.isposinf(logits).any()):
                raise NotFinite("the logits", why="they overflowed under these edits", instead="Use smaller edits")
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
            total += loss.double().sum().cpu()
    nats = float(total) / (rows.shape[0] * (rows.shape[1] - 1))
    return math.exp(nats) if nats < 700 else math.inf

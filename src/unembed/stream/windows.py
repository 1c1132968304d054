"""Shorten prompts that do not fit into the context: cut them into windows, or take only the last tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from unembed.errors import InvalidInput
from unembed.validation import positive_int

if TYPE_CHECKING:
    from unembed.models.decoder import Decoder


def prompt_windows(lm: Decoder, prompt: str, length: int | None = None) -> list[Int[Tensor, " pos"]]:
    """Cut a prompt into consecutive windows without overlap.

    If the tokenizer puts a begin token before every text, each window begins with it.

    Args:
        prompt: a text of any length.
        length: largest number of tokens in a window; by default, the model's context length.

    Raises:
        InvalidInput: the prompt is empty, or the model has no maximum context length and no length is given.
    """
    longest = lm.n_ctx if length is None else positive_int("length", length)
    if longest is None:
        raise InvalidInput(
            "windows without a length",
            why=f"{lm.name} has no maximum context length",
            instead="Give the length of a window",
        )
    first, rest = _parts(lm, prompt)
    return [torch.cat([first, window]) for window in rest.split(_room(first, longest))]


def last_tokens(lm: Decoder, prompt: str, count: int) -> Int[Tensor, " pos"]:
    """Return the last tokens of a prompt, after a begin token if the tokenizer puts one before every text.

    Args:
        prompt: a text of any length.
        count: largest number of tokens, including a begin token.

    Raises:
        InvalidInput: the prompt is empty.
    """
    first, rest = _parts(lm, prompt)
    return torch.cat([first, rest[-_room(first, positive_int("count", count)) :]])


def _parts(lm: Decoder, prompt: str) -> tuple[Int[Tensor, " start"], Int[Tensor, " pos"]]:
    """Return the begin token of a prompt (empty if it has none), and the other tokens."""
    ids = lm.encode(prompt)[0]
    start = getattr(lm.tokenizer, "bos_token_id", None)
    n = int(len(ids) > 1 and start is not None and int(ids[0]) == start)
    return ids[:n], ids[n:]


def _room(first: Tensor, length: int) -> int:
    """Return the number of tokens that fit into a window of this length after a begin token."""
    if length <= len(first):
        raise InvalidInput(
            f"a window of {length} tokens",
            why="the special token at its start leaves no room for others",
            instead=f"Give at least {len(first) + 1}",
        )
    return length - len(first)

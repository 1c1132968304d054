"""Split documents into segments: sentences or windows, which the model reads separately."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from unembed.corpus.segments import Document, Encoder, Segment
from unembed.corpus.sentences import sentences
from unembed.errors import InvalidInput

LONGEST = 1024
"""Largest default window in tokens, because the full context of a recent model would not fit into a batch."""


class _Window(NamedTuple):
    """A part of a text that the model reads at once: special tokens, context from the window before it, new tokens."""

    tokens: Tensor
    start: int
    """The number to add to the index of a new token in `tokens` to get the token's position in the text."""
    skip: int
    """Number of tokens before the new ones; 0 in the first window, whose special tokens are new."""
    end: int
    """Position in the text just after the last token of the window."""
    next_token: int


def segments_of(
    documents: Iterator[Document], encoder: Encoder, window: int | None, overlap: int | None, *, by_sentence: bool
) -> Iterator[Segment]:
    """Yield the sentences of documents, or whole documents, as segments; split those that are too long into windows.

    The attribute `sentence` of a segment is the number of the sentence, or else of the window, in the document.
    """
    size, back = sizes(encoder, window, overlap)
    lead = len(leading(encoder))
    number = position = 0
    for document in documents:
        span_start, span_end = document.span
        texts = sentences(document.text) if by_sentence else [document.text]
        for sentence, tokens in enumerate(encoder.encode_all(texts)):
            for count, one in enumerate(_windows(tokens, lead, size, back)):
                done, of = (sentence + 1, len(texts)) if by_sentence else (one.end, len(tokens))
                yield Segment(
                    number,
                    document.number,
                    sentence if by_sentence else count,
                    position + one.start,
                    one.skip,
                    lead,
                    one.tokens,
                    one.next_token,
                    span_start + (span_end - span_start) * done / of,
                )
                number += 1
            position += len(tokens)


def _windows(tokens: Tensor, lead: int, size: int, back: int) -> Iterator[_Window]:
    """Cut a tokenised text into windows, each with the special tokens at its start.

    A window after the first is [special tokens, `back` tokens of context, new tokens].
    """
    end = 0
    while end < len(tokens):
        if end == 0:
            columns, start, skip = tokens[:size], 0, 0
            end = len(columns)
        else:
            begin = end - back
            columns = torch.cat([tokens[:lead], tokens[begin : begin + size - lead]])
            start, skip = begin - lead, lead + back
            end = begin + len(columns) - lead
        yield _Window(columns.clone(), start, skip, end, int(tokens[end]) if end < len(tokens) else -1)


def sizes(encoder: Encoder, window: int | None, overlap: int | None) -> tuple[int, int]:
    """Return the largest number of tokens in a segment, and the overlap of two windows in tokens.

    Raises:
        InvalidInput: the window is longer than the model's context, or leaves no room for new tokens.
    """
    size = min(encoder.n_ctx or LONGEST, LONGEST) if window is None else window
    if encoder.n_ctx is not None and size > encoder.n_ctx:
        raise InvalidInput(f"window={size}", why=f"the model's context is {encoder.n_ctx}")
    back = size // 4 if overlap is None else overlap
    if back + len(leading(encoder)) >= size:
        raise InvalidInput(f"overlap={back}", why=f"a window of {size} tokens then has no room for new tokens")
    return size, back


def leading(encoder: Encoder) -> list[int]:
    """Return the special tokens that the tokenizer puts before every text."""
    a, b = (tokens.tolist() for tokens in encoder.encode_all(["a", "of"]))
    lead: list[int] = []
    for x, y in zip(a[:-1], b[:-1], strict=False):
        if x != y:
            break
        lead.append(x)
    return lead

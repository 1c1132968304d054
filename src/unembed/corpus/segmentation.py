"""Split documents into segments: sentences or windows, which the model reads separately."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from unembed.corpus.segments import Document, Encoder, Segment
from unembed.corpus.sentences import sentences
from unembed.errors import InvalidInput

LONGEST = 1024
"""Largest default window in tokens, because the full context of a recent model would not fit into a batch."""


class _Axis:
    """The number of tokens and the number of segments in the corpus so far."""

    def __init__(self) -> None:
        self.position = 0
        self.number = 0


def sentence_segments(
    documents: Iterator[Document], encoder: Encoder, window: int | None, overlap: int | None
) -> Iterator[Segment]:
    """Yield each sentence as a segment; a sentence longer than the window is split into overlapping windows."""
    size, back = sizes(encoder, window, overlap)
    lead = leading(encoder)
    axis = _Axis()
    for document in documents:
        texts = sentences(document.text)
        for number, tokens in enumerate(encoder.encode_all(texts)):
            share = _between(document.span, number + 1, len(texts))
            for segment in _windows(tokens, len(lead), size, back, document.number, number, axis):
                yield replace(segment, share=share)


def window_segments(
    documents: Iterator[Document], encoder: Encoder, window: int | None, overlap: int | None
) -> Iterator[Segment]:
    """Yield each document as overlapping windows, numbered within the document by their attribute `sentence`."""
    size, back = sizes(encoder, window, overlap)
    lead = leading(encoder)
    axis = _Axis()
    for document in documents:
        tokens = encoder.encode_all([document.text])[0]
        before = axis.position
        for segment in _windows(tokens, len(lead), size, back, document.number, None, axis):
            done = segment.start + len(segment) - before
            yield replace(segment, share=_between(document.span, done, len(tokens)))


def _windows(
    tokens: Tensor, lead: int, size: int, back: int, document: int, sentence: int | None, axis: _Axis
) -> Iterator[Segment]:
    """Yield a tokenised text as windows, each with the special tokens at its start.

    A window after the first is [special tokens, `back` tokens of context, new tokens]. Its `start` is chosen so that a
    token in two windows has the same corpus position in both; only the new tokens are counted.
    """
    n = len(tokens)
    start, done, count = axis.position, 0, 0
    while done < n:
        if done == 0:
            columns, skip, at = tokens[:size], 0, start
            done = len(columns)
        else:
            begin = done - back
            columns = torch.cat([tokens[:lead], tokens[begin : begin + size - lead]])
            skip, at = lead + back, start + begin - lead
            done = begin + len(columns) - lead
        follow = int(tokens[done]) if done < n else -1
        yield Segment(
            axis.number, document, count if sentence is None else sentence, at, skip, lead, columns.clone(), follow
        )
        axis.number += 1
        count += 1
    axis.position = start + n


def _between(span: tuple[float, float], done: int, of: int) -> float:
    return span[0] + (span[1] - span[0]) * done / of


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

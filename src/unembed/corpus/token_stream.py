"""A tokenised corpus: all its tokens in one array (the token stream), and the segments that the model reads.

Every token that counts is in the stream once, in the order of the corpus, so its position is its index. A segment is a
sentence or a window; a window also contains the end of the one before it, as context.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from unembed.errors import CorpusUnreadable

if TYPE_CHECKING:  # an index is read without torch
    from unembed.corpus.segments import Batch, Encoder, Segment

SEGMENT_COLUMNS = {"start": "q", "first": "q", "origin": "q", "document": "i", "sentence": "i", "after": "i"}
"""The arrays over segments, with their type codes: 64 and 32 bits."""


@dataclass(frozen=True, eq=False)
class TokenStream:
    """The token stream of a corpus and its segments; the arrays may be memory maps.

    Attributes:
        token: the token id at each position.
        start: the position of each segment's first counted token; the last element is the length of the stream.
        first: the position of each segment's first text token, which is before `start` if the segment has context.
        origin: the position at which each segment's document starts.
        document: the document number of each segment.
        sentence: the number of each sentence or window in its document.
        after: the token that follows each segment in its text; -1 if there is none.
    """

    token: Int[np.ndarray, " stream"]
    start: Int[np.ndarray, " starts"]
    first: Int[np.ndarray, " segments"]
    origin: Int[np.ndarray, " segments"]
    document: Int[np.ndarray, " segments"]
    sentence: Int[np.ndarray, " segments"]
    after: Int[np.ndarray, " segments"]

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> TokenStream:
        """Build the token stream of some segments in memory.

        Memory: 4 bytes for each token and 36 bytes for each segment.

        Raises:
            CorpusUnreadable: there is no token.
        """
        table = SegmentTable()
        parts = [table.append(segment) for segment in segments]
        columns = table.finish()
        return cls(np.concatenate(parts), **columns)

    def __len__(self) -> int:
        """The number of counted tokens."""
        return len(self.token)

    @property
    def n_segments(self) -> int:
        """The number of segments (sentences or windows)."""
        return len(self.first)

    @property
    def n_special(self) -> int:
        """The number of special tokens at the start of each segment."""
        return int(self.first[0]) - int(self.start[0])  # the first segment reads no context

    @property
    def lengths(self) -> Int[np.ndarray, " segments"]:
        """The number of tokens of each segment, with special tokens and context."""
        return np.asarray(self.start[1:]) - self._column_zero

    @property
    def _column_zero(self) -> Int[np.ndarray, " segments"]:
        """For each segment, the position of its first text token minus the number of special tokens before that."""
        return np.asarray(self.first) - self.n_special

    @cached_property
    def _text_segment(self) -> Int[np.ndarray, " segments"]:
        """For each segment, the number of the first window of its text: its own number if it has no context."""
        reads_context = np.asarray(self.start[:-1]) > self._column_zero
        return np.maximum.accumulate(np.where(reads_context, 0, np.arange(self.n_segments)))

    def segment(self, positions: Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
        """Return, for each position, the number of the segment that counts it."""
        return np.asarray(np.searchsorted(self.start, positions, side="right") - 1)

    def tokens_at(self, positions: Int[np.ndarray, " position"]) -> Int[np.ndarray, " position"]:
        """Return the token at each position; -1 for positions below 0."""
        return np.where(positions < 0, -1, np.asarray(self.token[np.maximum(positions, 0)]))

    def next_tokens(self, positions: Int[np.ndarray, " position"]) -> Int[np.ndarray, " position"]:
        """Return the token after each position; -1 where the text ends, and for positions below 0."""
        at = np.maximum(positions, 0)
        segment = self.segment(at)
        is_last = at + 1 >= np.asarray(self.start)[segment + 1]
        following = np.asarray(self.token)[np.where(is_last, at, at + 1)]
        return np.where(positions < 0, -1, np.where(is_last, np.asarray(self.after)[segment], following))

    def prefix(self, position: int, *, special: bool = True) -> Int[np.ndarray, " pos"]:
        """Return the tokens of a segment up to a position, inclusive, with or without special tokens at its start."""
        segment = int(self.segment(np.array(position)))
        tokens = self._columns(segment, position + 1)
        return tokens if special else tokens[self.n_special :]

    def prefix_lengths(self, positions: Int[np.ndarray, " position"]) -> Int[np.ndarray, " position"]:
        """Return the number of text tokens from the start of the segment to each position, inclusive."""
        return positions + 1 - np.asarray(self.first)[self.segment(positions)]

    def prefix_positions(self) -> Int[np.ndarray, " prefix"]:
        """Return the position of every text token; each is the end of a prefix, the segment's text up to the token."""
        begin = np.maximum(self.start[:-1], self.first)
        return np.concatenate([np.arange(a, b) for a, b in zip(begin, self.start[1:], strict=True)])

    def segments(self) -> Iterator[Segment]:
        """Yield all segments, as `Corpus.segments` does."""
        return (self._segment(number, int(self.start[number + 1])) for number in range(self.n_segments))

    def segments_up_to(self, positions: Int[np.ndarray, " position"]) -> Iterator[Segment]:
        """Yield each segment in which some of these positions are counted, cut off after the last of them."""
        segment = self.segment(positions)
        for number in np.unique(segment).tolist():
            yield self._segment(number, int(positions[segment == number].max()) + 1)

    def _columns(self, segment: int, end: int) -> Int[np.ndarray, " pos"]:
        """Return a segment's tokens up to stream position `end` (exclusive), including special tokens and context."""
        start, first, n = int(self.start[segment]), int(self.first[segment]), self.n_special
        if start <= first - n:
            return np.asarray(self.token[start:end])
        opening = int(self.start[self._text_segment[segment]])
        return np.concatenate([self.token[opening : opening + n], self.token[first:end]])

    def _segment(self, number: int, end: int) -> Segment:
        import torch

        from unembed.corpus.segments import Segment

        start, whole = int(self.start[number]), int(self.start[number + 1])
        column_zero = int(self.first[number]) - self.n_special
        return Segment(
            number,
            int(self.document[number]),
            int(self.sentence[number]),
            column_zero,
            start - column_zero,
            self.n_special,
            torch.from_numpy(self._columns(number, end).astype(np.int64)),
            int(self.after[number] if end == whole else self.token[end]),
            end / len(self.token),
        )


@dataclass(frozen=True, eq=False)
class TokenizedCorpus:
    """A token stream with the name of its corpus; it can replace a `Corpus` in a sweep.

    Attributes:
        name: the name of the corpus.
        fingerprint: see `Corpus.fingerprint`.
        stream: the tokens and segments.
    """

    name: str
    fingerprint: str
    stream: TokenStream

    def batches(self, encoder: Encoder, tokens: int = 2048, ahead: int = 256) -> Iterator[Batch]:
        """Yield the same batches as `Corpus.batches`, but from the stored tokens; `encoder` is not used."""
        from unembed.corpus.batches import bucketed

        return bucketed(self.stream.segments(), tokens, ahead)


class SegmentTable:
    """Builds the arrays of a `TokenStream` that have an element for each segment, one segment at a time."""

    def __init__(self) -> None:
        self._columns = {name: array(code) for name, code in SEGMENT_COLUMNS.items()}
        self._document, self._origin = -1, 0
        self.end = 0
        """Number of tokens counted so far."""

    def append(self, segment: Segment) -> Int[np.ndarray, " counted"]:
        """Add a segment, and return its counted tokens."""
        start = segment.start + segment.skip
        if segment.document != self._document:
            self._document, self._origin = segment.document, start
        row = {
            "start": start,
            "first": segment.start + segment.lead,
            "origin": self._origin,
            "document": segment.document,
            "sentence": segment.sentence,
            "after": segment.next_token,
        }
        for name, value in row.items():
            self._columns[name].append(value)
        self.end = segment.start + len(segment)
        return segment.tokens[segment.skip :].numpy().astype("<i4")

    def finish(self) -> dict[str, np.ndarray]:
        """Return the arrays by name.

        Raises:
            CorpusUnreadable: no token was added.
        """
        if self.end == 0:
            raise CorpusUnreadable("the corpus has no tokens", instead="Give one that contains text")
        self._columns["start"].append(self.end)
        return {name: np.frombuffer(column, dtype=f"i{column.itemsize}") for name, column in self._columns.items()}

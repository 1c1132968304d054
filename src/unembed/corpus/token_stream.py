"""A corpus tokenised once: its token stream, and the segments that the model reads.

The stream holds every counted token once, in corpus order, so a token's position is its index in the stream. A segment
is a sentence or a window; a later window also reads the end of the one before it as context.
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
        token: the id at each position.
        start: the position at which the counted tokens of each segment start, then the length of the stream.
        first: the position of the first text token that each segment reads; before `start` in a later window.
        origin: the position at which the document of each segment starts.
        document: the document number of each segment.
        sentence: the number of the sentence or window in its document.
        after: the token after the last one of each segment; -1 where there is none.
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
        """Build the stream of all segments of a corpus in memory: 4 bytes a token, 36 bytes a segment.

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
        """The number of special tokens that the tokenizer puts in front of each segment."""
        return int(self.first[0]) - int(self.start[0])  # the first segment reads no context

    @property
    def lengths(self) -> Int[np.ndarray, " segments"]:
        """The number of tokens that the model reads in each segment, with special tokens and context."""
        return np.asarray(self.start[1:]) - self._column_zero

    @property
    def _column_zero(self) -> Int[np.ndarray, " segments"]:
        """The position of each segment's column 0, found by counting special tokens back from its first text token."""
        return np.asarray(self.first) - self.n_special

    @cached_property
    def _text_segment(self) -> Int[np.ndarray, " segments"]:
        """The segment at which the text of each segment begins: itself, or the first window of the text."""
        reads_context = np.asarray(self.start[:-1]) > self._column_zero
        return np.maximum.accumulate(np.where(reads_context, 0, np.arange(self.n_segments)))

    def segment(self, positions: Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
        """Return the segment that counts each position."""
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
        """Return every token that the model has read up to a position, with or without special tokens in front."""
        segment = int(self.segment(np.array(position)))
        tokens = self._columns(segment, position + 1)
        return tokens if special else tokens[self.n_special :]

    def prefix_lengths(self, positions: Int[np.ndarray, " position"]) -> Int[np.ndarray, " position"]:
        """Return the number of text tokens in the prefix that ends at each position."""
        return positions + 1 - np.asarray(self.first)[self.segment(positions)]

    def prefix_positions(self) -> Int[np.ndarray, " prefix"]:
        """Return the last position of every prefix with at least one text token, each once, in corpus order."""
        begin = np.maximum(self.start[:-1], self.first)
        return np.concatenate([np.arange(a, b) for a, b in zip(begin, self.start[1:], strict=True)])

    def segments(self) -> Iterator[Segment]:
        """Yield the segments that the corpus was cut into, as `Corpus.segments` does."""
        return (self._segment(number, int(self.start[number + 1])) for number in range(self.n_segments))

    def segments_up_to(self, positions: Int[np.ndarray, " position"]) -> Iterator[Segment]:
        """Yield the segments that count these positions, each once, cut off after the last such position."""
        segment = self.segment(positions)
        for number in np.unique(segment).tolist():
            yield self._segment(number, int(positions[segment == number].max()) + 1)

    def _columns(self, segment: int, end: int) -> Int[np.ndarray, " pos"]:
        """Return the tokens of a segment that the model reads up to a position (exclusive)."""
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
    """A token stream with the name of its corpus; a sweep accepts it wherever it accepts a `Corpus`.

    Attributes:
        fingerprint: the fingerprint of the corpus; see `Corpus.fingerprint`.
    """

    name: str
    fingerprint: str
    stream: TokenStream

    def batches(self, encoder: Encoder, tokens: int = 2048, ahead: int = 256) -> Iterator[Batch]:
        """Yield the batches that `Corpus.batches` gives, from stored tokens; `encoder` is not used."""
        from unembed.corpus.batches import bucketed

        return bucketed(self.stream.segments(), tokens, ahead)


class SegmentTable:
    """Arrays over segments, filled one segment at a time."""

    def __init__(self) -> None:
        self._columns = {name: array(code) for name, code in SEGMENT_COLUMNS.items()}
        self._document, self._origin = -1, 0
        self.end = 0
        """Counted tokens so far."""

    def append(self, segment: Segment) -> Int[np.ndarray, " counted"]:
        """Add a segment, and return the tokens that it counts."""
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

"""The parts of a corpus: documents, segments (what the model reads at once) and batches of segments.

Every counted token has one `position`: the number of counted tokens of the corpus before it. Positions increase in
corpus order, so a trigger is identified by one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@runtime_checkable
class Encoder(Protocol):
    """What a corpus needs from a model: its tokenizer and the length of its context."""

    @property
    def n_ctx(self) -> int | None:
        """The length of the longest prompt; None if there is no limit."""
        ...

    def encode_all(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the tokens of each text, (pos,), with special tokens; empty for a text without tokens."""
        ...


@dataclass(frozen=True)
class Document:
    """One text of the corpus."""

    number: int
    name: str
    """Its title where it has one (WikiText), else file and line or row."""
    text: str
    span: tuple[float, float] = (0.0, 1.0)
    """Its start and end as shares of the corpus, for progress."""


@dataclass(frozen=True)
class Segment:
    """One input of the model: a sentence, or a window of a document.

    Attributes:
        number: counted through the corpus.
        sentence: number of the sentence or window inside the document.
        start: position of column 0; column c is at `start + c`.
        skip: leading columns that are only context; an earlier window counted them.
        lead: leading columns that are special tokens of the tokenizer.
        next_token: the token after the last one, -1 where the corpus has none or the segment is a sentence.
        share: the share of the corpus read when the segment ends, 0 to 1.
    """

    number: int
    document: int
    sentence: int
    start: int
    skip: int
    lead: int
    tokens: Int[Tensor, " pos"]
    next_token: int = -1
    share: float = 0.0

    def __len__(self) -> int:
        """The number of columns."""
        return len(self.tokens)


@dataclass(frozen=True, eq=False)
class Batch:
    """Segments of similar length, padded on the right. Small integer tensors; all on the CPU until `to`.

    Attributes:
        number: counted through the corpus; the same for every run of the same corpus, model and batch size.
        tokens: ids, padding filled with 0.
        lengths: columns that are real.
        sentences: sentence numbers inside the document.
        starts: position of column 0.
        skips: leading columns that are not counted.
        leads: leading columns that are special tokens.
        after: the token after the last, -1 for none.
        share: the share of the corpus read after the batch, 0 to 1.
    """

    number: int
    tokens: Int[Tensor, "batch pos"]
    lengths: Int[Tensor, " batch"]
    segments: Int[Tensor, " batch"]
    documents: Int[Tensor, " batch"]
    sentences: Int[Tensor, " batch"]
    starts: Int[Tensor, " batch"]
    skips: Int[Tensor, " batch"]
    leads: Int[Tensor, " batch"]
    after: Int[Tensor, " batch"]
    share: float = 0.0

    @classmethod
    def of(cls, number: int, segments: list[Segment], share: float = 0.0) -> Batch:
        """Combine the segments into one batch, in the order given."""
        lengths = torch.tensor([len(s) for s in segments])
        tokens = torch.zeros(len(segments), int(lengths.max()), dtype=torch.long)
        for row, segment in enumerate(segments):
            tokens[row, : len(segment)] = segment.tokens
        return cls(
            number,
            tokens,
            lengths,
            torch.tensor([s.number for s in segments]),
            torch.tensor([s.document for s in segments]),
            torch.tensor([s.sentence for s in segments]),
            torch.tensor([s.start for s in segments]),
            torch.tensor([s.skip for s in segments]),
            torch.tensor([s.lead for s in segments]),
            torch.tensor([s.next_token for s in segments]),
            share,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(batch, pos)."""
        return self.tokens.shape[0], self.tokens.shape[1]

    @cached_property
    def columns(self) -> Int[Tensor, " pos"]:
        """0, 1, 2, ..."""
        return torch.arange(self.tokens.shape[1])

    @cached_property
    def mask(self) -> Bool[Tensor, "batch pos"]:
        """True for real tokens, False for padding."""
        return self.columns < self.lengths[:, None]

    @cached_property
    def counted(self) -> Bool[Tensor, "batch pos"]:
        """True for the columns that statistics count: real tokens that no earlier window counted."""
        return self.mask & (self.columns >= self.skips[:, None])

    @cached_property
    def positions(self) -> Int[Tensor, "batch pos"]:
        """The position of each column."""
        return self.starts[:, None] + self.columns

    @cached_property
    def prefix_lengths(self) -> Int[Tensor, "batch pos"]:
        """The number of text tokens in the prefix that ends at each column."""
        return (self.columns + 1 - self.leads[:, None]).clamp_min(0)

    @cached_property
    def next_tokens(self) -> Int[Tensor, "batch pos"]:
        """The token after each column, -1 if there is none."""
        following = torch.full_like(self.tokens, -1)
        following[:, :-1] = self.tokens[:, 1:]
        following[~self.mask] = -1
        following[torch.arange(len(self.lengths)), self.lengths - 1] = self.after
        return following

    @cached_property
    def n_counted(self) -> int:
        """The number of positions that statistics count."""
        return int(self.counted.sum())

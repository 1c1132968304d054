"""The parts of a corpus: documents, segments (sentences or windows, each one input of the model), and batches.

A token in the overlap of several windows is counted once. The `position` of a token is the number of counted tokens
before it in the corpus, so it identifies the token.
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
    """What a corpus needs from a model: tokenisation, and the context length."""

    @property
    def n_ctx(self) -> int | None:
        """The context length in tokens; None if there is no limit."""
        ...

    def encode_all(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the tokens of each text, (pos,), with special tokens; empty for a text without tokens."""
        ...


@dataclass(frozen=True)
class Document:
    """One text of the corpus."""

    number: int
    name: str
    """The document's title if it has one (WikiText), else its file and line or row."""
    text: str
    span: tuple[float, float] = (0.0, 1.0)
    """The document's start and end as shares of the corpus, to report progress."""


@dataclass(frozen=True)
class Segment:
    """One input of the model: a sentence, or a window of a document.

    Attributes:
        number: number of the segment in the corpus, from 0.
        document: number of the document.
        sentence: number of the sentence or window in the document.
        start: corpus position of the segment's first token; token c of the segment has position `start + c`.
        skip: number of tokens at the start that are context only, because an earlier window counted them.
        lead: number of tokens at the start that are special tokens of the tokenizer.
        next_token: the token that follows the segment in its text; -1 if there is none or the segment is a sentence.
        share: the share of the corpus up to the end of this segment, 0 to 1.
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
        """The number of tokens."""
        return len(self.tokens)


@dataclass(frozen=True, eq=False)
class Batch:
    """Segments of similar length, padded on the right. All tensors are on the CPU.

    Attributes:
        number: number of the batch in the corpus; the same in every run with the same corpus, model and batch size.
        tokens: token ids; padding is 0.
        lengths: number of tokens of each segment, without padding.
        segments: number of each segment in the corpus.
        documents: document number of each segment.
        sentences: number of each sentence or window in its document.
        starts: position in the corpus of each segment's first token.
        skips: number of tokens at the start of each segment that are not counted.
        leads: number of tokens at the start of each segment that are special tokens.
        after: the token that follows each segment in its text; -1 if there is none.
        share: the share of the corpus up to the end of this batch, 0 to 1.
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
        """The number of segments, and the length of the longest."""
        return self.tokens.shape[0], self.tokens.shape[1]

    @cached_property
    def columns(self) -> Int[Tensor, " pos"]:
        """The column numbers 0, 1, 2, ... of `tokens`."""
        return torch.arange(self.tokens.shape[1])

    @cached_property
    def mask(self) -> Bool[Tensor, "batch pos"]:
        """True for real tokens, False for padding."""
        return self.columns < self.lengths[:, None]

    @cached_property
    def counted(self) -> Bool[Tensor, "batch pos"]:
        """True for the tokens that statistics count: not padding, and not context from an earlier window."""
        return self.mask & (self.columns >= self.skips[:, None])

    @cached_property
    def positions(self) -> Int[Tensor, "batch pos"]:
        """The position of each token in the corpus."""
        return self.starts[:, None] + self.columns

    @cached_property
    def prefix_lengths(self) -> Int[Tensor, "batch pos"]:
        """The number of text tokens from the start of the segment up to each token; special tokens are not counted."""
        return (self.columns + 1 - self.leads[:, None]).clamp_min(0)

    @cached_property
    def next_tokens(self) -> Int[Tensor, "batch pos"]:
        """The token that follows each token; -1 if there is none."""
        following = torch.full_like(self.tokens, -1)
        following[:, :-1] = self.tokens[:, 1:]
        following[~self.mask] = -1
        following[torch.arange(len(self.lengths)), self.lengths - 1] = self.after
        return following

    @cached_property
    def n_counted(self) -> int:
        """The number of tokens that statistics count."""
        return int(self.counted.sum())

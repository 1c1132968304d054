"""The corpus as the model reads it, in arrays: prefixes, what follows them, and the random draws of the study."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int

from unembed.corpus import Corpus, Segment
from unembed.corpus.segmentation import leading
from unembed.errors import InvalidInput
from unembed.index import Index
from unembed.models.decoder import Decoder


@dataclass(frozen=True, eq=False)
class Text:
    """Every segment's tokens, one after the other, and each segment's place on the corpus axis."""

    tokens: Int[np.ndarray, " columns"]
    offsets: Int[np.ndarray, " segments_and_one"]
    starts: Int[np.ndarray, " segments"]
    """Place of column 0 on the corpus axis."""
    skips: Int[np.ndarray, " segments"]
    """Columns that an earlier window counted."""
    leads: Int[np.ndarray, " segments"]
    """Special tokens in front."""
    after: Int[np.ndarray, " segments"]
    """The token after the last, -1 for none."""

    @classmethod
    def of_corpus(cls, corpus: Corpus, lm: Decoder) -> Text:
        """The corpus in a model's tokens: 4 bytes a token."""
        segments = list(corpus.segments(lm))
        lengths = [len(s) for s in segments]
        return cls(
            torch.cat([s.tokens for s in segments]).to(torch.int32).numpy(),
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            np.array([s.start for s in segments], dtype=np.int64),
            np.array([s.skip for s in segments], dtype=np.int64),
            np.array([s.lead for s in segments], dtype=np.int64),
            np.array([s.next_token for s in segments], dtype=np.int64),
        )

    @classmethod
    def of_index(cls, index: Index, lm: Decoder) -> Text:
        """The corpus that an index holds."""
        p = index.passages
        stream, lead = np.asarray(p.token), np.array(leading(lm), dtype=np.int32)
        counted, end, first = np.asarray(p.start)[:-1], np.asarray(p.start)[1:], np.asarray(p.first)
        # The first window of a text counts its special tokens too; in later ones they stand outside the axis.
        parts = [np.concatenate([lead, stream[a:b]]) for a, b in zip(first, end, strict=True)]
        starts = first - len(lead)
        return cls(
            np.concatenate(parts).astype(np.int32),
            np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64),
            starts.astype(np.int64),
            (counted - starts).astype(np.int64),
            np.full(len(first), len(lead), dtype=np.int64),
            np.asarray(p.after).astype(np.int64),
        )

    @property
    def n_segments(self) -> int:
        """Sentences, or windows."""
        return len(self.starts)

    @property
    def lengths(self) -> Int[np.ndarray, " segments"]:
        """Columns of each segment."""
        return np.diff(self.offsets)

    def place(self, positions: Int[np.ndarray, " n"]) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """The segment of each place on the axis, and its column there."""
        segment = np.searchsorted(self.starts + self.skips, positions, side="right") - 1
        return segment, positions - self.starts[segment]

    def prefix(self, position: int) -> Int[np.ndarray, " pos"]:
        """All tokens that the model has read at a place, special tokens in front included."""
        segment, column = (int(found[0]) for found in self.place(np.array([position])))
        begin = int(self.offsets[segment])
        return self.tokens[begin : begin + column + 1]

    def lead(self, position: int) -> int:
        """Special tokens in front of the prefix."""
        return int(self.leads[self.place(np.array([position]))[0][0]])

    def following(self, positions: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The token after each place; -1 where the text ends, or for places below 0."""
        segment, column = self.place(np.maximum(positions, 0))
        last = column + 1 >= self.lengths[segment]
        at = np.minimum(self.offsets[segment] + column + 1, len(self.tokens) - 1)
        return np.where(positions < 0, -1, np.where(last, self.after[segment], self.tokens[at]))

    def token(self, positions: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The last token of each prefix; -1 for places below 0."""
        segment, column = self.place(np.maximum(positions, 0))
        return np.where(positions < 0, -1, self.tokens[self.offsets[segment] + column])

    def prefix_lengths(self, positions: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Tokens of text in each prefix."""
        segment, column = self.place(positions)
        return column + 1 - self.leads[segment]

    def all_prefixes(self) -> Int[np.ndarray, " n"]:
        """The places of all prefixes with at least one token of text, each counted once."""
        begin = self.starts + np.maximum(self.skips, self.leads)
        end = self.starts + self.lengths
        return np.concatenate([np.arange(a, b) for a, b in zip(begin, end, strict=True)])

    def drawn(self, n: int, how: str, seed: int, name: str) -> Int[np.ndarray, " n"]:
        """Random prefixes without repetition, in the order of the corpus.

        Args:
            n: how many.
            how: "prefixes" or "sentences"; see `Options.draw`.
            seed: of the draw.
            name: of the corpus, for the refusal.

        Raises:
            InvalidInput: the corpus is too small; says how many there are.
        """
        random = np.random.default_rng([seed, 2021])
        if how == "prefixes":
            there = self.all_prefixes()
        else:
            begin = np.maximum(self.skips, self.leads)
            there = np.flatnonzero(self.lengths > begin)
        if len(there) < n:
            raise InvalidInput(
                f"{n:,} examples from {name}",
                why=f"it has {len(there):,} {how} of text",
                instead=f"Ask for fewer (--option examples={len(there)}), or give a larger corpus",
            )
        chosen = np.sort(random.choice(there, n, replace=False))
        if how == "prefixes":
            return chosen
        return self.starts[chosen] + random.integers(begin[chosen], self.lengths[chosen])

    def segments_of(self, positions: Int[np.ndarray, " n"]) -> Iterator[Segment]:
        """The segments that hold these places, each once, cut off after the last of them."""
        segment, column = self.place(positions)
        for s in np.unique(segment).tolist():
            end = int(column[segment == s].max()) + 1
            begin = int(self.offsets[s])
            yield Segment(
                s,
                0,
                s,
                int(self.starts[s]),
                int(self.skips[s]),
                int(self.leads[s]),
                torch.from_numpy(self.tokens[begin : begin + end].astype(np.int64)),
                int(self.tokens[begin + end]) if end < self.lengths[s] else int(self.after[s]),
            )

"""Windows of one length from a text, one in a batch: what is fitted on contexts of the same length reads these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from unembed.corpus.corpus import CorpusSource
from unembed.corpus.segments import Batch, Encoder, Segment
from unembed.corpus.windows import windows_of


@dataclass(frozen=True, eq=False)
class WholeWindows:
    """Some windows of a text, without the shorter ones at the ends of documents; a sweep takes it like a corpus.

    Attributes:
        text: the fingerprint of the text.
        first: the number of windows before these.
    """

    name: str
    text: str
    first: int
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, encoder: Encoder, corpus: CorpusSource, length: int, first: int, count: int) -> WholeWindows:
        """Cut `count` windows of `length` tokens, fewer where the text ends, after leaving out the first ones."""
        text = windows_of(corpus, length, overlap=0)
        whole = (segment for segment in text.segments(encoder) if len(segment) == length)
        found = tuple(islice(whole, first, first + count))
        return cls(text.name, text.fingerprint, first, found)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the text, and which of its windows these are."""
        return f"{self.text}, windows {self.first} to {self.first + len(self.segments)}"

    def part(self, start: int, end: int | None = None) -> WholeWindows:
        """Return the windows from `start` to `end` (exclusive)."""
        return WholeWindows(self.name, self.text, self.first + start, self.segments[start:end])

    def batches(self, encoder: Encoder, tokens: int = 2048, ahead: int = 256) -> Iterator[Batch]:
        """Yield each window as a batch; the arguments are those of `Corpus.batches` and change nothing."""
        for number, segment in enumerate(self.segments):
            yield Batch.of(number, [segment], (number + 1) / len(self.segments))

"""Windows of equal length from a text, for fits in which all contexts have the same length; each window is a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from unembed.corpus.corpus import CorpusSource
from unembed.corpus.segments import Batch, Encoder, Segment
from unembed.corpus.windows import windows_of


@dataclass(frozen=True, eq=False)
class WholeWindows:
    """Windows of equal length from a text; it can replace a `Corpus` in a sweep.

    Shorter windows at the ends of documents are left out.

    Attributes:
        name: the name of the text.
        text: the fingerprint of the text.
        first: number of windows of the text that are skipped before the first of `segments`.
        segments: the windows, as segments.
    """

    name: str
    text: str
    first: int
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, encoder: Encoder, corpus: CorpusSource, length: int, first: int, count: int) -> WholeWindows:
        """Take up to `count` windows of `length` tokens from a corpus, after its first `first` windows."""
        text = windows_of(corpus, length, overlap=0)
        whole = (segment for segment in text.segments(encoder) if len(segment) == length)
        found = tuple(islice(whole, first, first + count))
        return cls(text.name, text.fingerprint, first, found)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the text, and the numbers of the windows."""
        return f"{self.text}, windows {self.first} to {self.first + len(self.segments)}"

    def part(self, start: int, end: int | None = None) -> WholeWindows:
        """Return the windows from `start` to `end` (exclusive)."""
        return WholeWindows(self.name, self.text, self.first + start, self.segments[start:end])

    def batches(self, encoder: Encoder, tokens: int = 2048, ahead: int = 256) -> Iterator[Batch]:
        """Yield each window as a batch; the arguments are those of `Corpus.batches` and have no effect."""
        for number, segment in enumerate(self.segments):
            yield Batch.of(number, [segment], (number + 1) / len(self.segments))

"""Report the progress of a sweep: share done, rate and time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """The state of a sweep at one moment.

    Attributes:
        batches: processed so far, in earlier runs too.
        tokens: positions counted so far, in earlier runs too.
        share: the share of the corpus, 0 to 1, by bytes of its files or characters of its texts.
        rate: tokens per second in this run.
        left: seconds until the end at this rate; None before the first batch.
    """

    batches: int
    tokens: int
    share: float
    rate: float
    left: float | None

    def line(self) -> str:
        """Format the progress as one line for a terminal."""
        left = "" if self.left is None else f", {clock(self.left)} left"
        return f"{self.share:6.1%}  {self.tokens:,} tokens, {self.rate:,.0f} tokens/s{left}"


def clock(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


ProgressCallback = Callable[[Progress], None]


class Reporter:
    """Calls a progress callback at intervals of at least `interval` seconds, and at the end."""

    def __init__(self, callback: ProgressCallback | None, interval: float = 0.5) -> None:
        self._callback, self._interval = callback, interval
        self._start = self._last = time.monotonic()
        self._resumed_at = 0, 0.0

    def resume(self, tokens: int, share: float) -> None:
        """Start the clock again, after the batches of an earlier run."""
        self._start, self._resumed_at = time.monotonic(), (tokens, share)

    def report(self, batches: int, tokens: int, share: float, *, end: bool = False) -> None:
        """Report, if the interval has passed or the sweep has ended."""
        now = time.monotonic()
        if self._callback is None or (not end and now - self._last < self._interval):
            return
        self._last = now
        tokens_before, share_before = self._resumed_at
        spent, done = now - self._start, share - share_before
        left = 0.0 if end else spent * (1 - share) / done if done > 0 else None
        rate = (tokens - tokens_before) / spent if spent > 0 else 0.0
        self._callback(Progress(batches, tokens, share, rate, left))

"""How far a sweep is: rate and time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """One report.

    Attributes:
        batches: fed so far, those of an earlier run included.
        tokens: positions counted so far, alike.
        share: of the corpus, 0 to 1, by bytes of its files or characters of its texts.
        rate: tokens counted a second, in this run.
        left: seconds until the end at this pace; None before the first batch.
    """

    batches: int
    tokens: int
    share: float
    rate: float
    left: float | None

    def line(self) -> str:
        """As one line for a terminal."""
        left = "" if self.left is None else f", {clock(self.left)} left"
        return f"{self.share:6.1%}  {self.tokens:,} tokens, {self.rate:,.0f} tokens/s{left}"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


Report = Callable[[Progress], None]


class Reporter:
    """Calls a report at most every `interval` seconds, and at the end."""

    def __init__(self, report: Report | None, interval: float = 0.5) -> None:
        """Begin to count time with the first batch."""
        self._report, self._interval = report, interval
        self._start = self._last = time.monotonic()
        self._first: tuple[int, float] | None = None

    def begin(self, tokens: int, share: float) -> None:
        """What an earlier run had done."""
        self._start, self._first = time.monotonic(), (tokens, share)

    def tell(self, batches: int, tokens: int, share: float, *, end: bool = False) -> None:
        """Report where the sweep stands, if it is time."""
        now = time.monotonic()
        if self._report is None or (not end and now - self._last < self._interval):
            return
        self._last = now
        before_tokens, before_share = self._first or (0, 0.0)
        spent, done = now - self._start, share - before_share
        left = 0.0 if end else spent * (1 - share) / done if done > 0 else None
        rate = (tokens - before_tokens) / spent if spent > 0 else 0.0
        self._report(Progress(batches, tokens, share, rate, left))


def to_stderr(progress: Progress) -> None:
    """Write the line over the last one."""
    sys.stderr.write(f"\r\x1b[K{progress.line()}" if sys.stderr.isatty() else f"{progress.line()}\n")
    sys.stderr.flush()

"""Report the progress of a sweep: the share that is done, the rate and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from unembed.results import format_cell, format_number


@dataclass(frozen=True)
class Progress:
    """How far a sweep has come.

    Attributes:
        batches: number of batches done so far, including those before a restart.
        tokens: number of tokens counted so far, including those before a restart.
        share: the share of the corpus that is done, 0 to 1, in bytes of its files or characters of its texts.
        rate: tokens per second since the start or restart.
        left: seconds until the end at this rate; None before the first batch is done.
    """

    batches: int
    tokens: int
    share: float
    rate: float
    left: float | None

    def line(self) -> str:
        """Format the progress as one line for a terminal."""
        left = "" if self.left is None else f", {clock(self.left)} left"
        return (
            f"{format_cell(100 * self.share, 1):>5} %  {self.tokens:,} tokens, {format_number(self.rate, decimals=0)} "
            f"tokens/s{left}"
        )


def clock(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


ProgressCallback = Callable[[Progress], None]
_INTERVAL_S = 0.5


class Reporter:
    """Calls a progress callback about twice a second, and at the end."""

    def __init__(self, callback: ProgressCallback | None) -> None:
        self._callback = callback
        self._start = self._last = time.monotonic()
        self._resumed_at = 0, 0.0

    def resume(self, tokens: int, share: float) -> None:
        """Measure the rate from now on, without the tokens and the share of the work done before a restart."""
        self._start, self._resumed_at = time.monotonic(), (tokens, share)

    def report(self, batches: int, tokens: int, share: float, *, end: bool = False) -> None:
        """Call the callback, if half a second has passed since the last call or the sweep has ended."""
        now = time.monotonic()
        if self._callback is None or (not end and now - self._last < _INTERVAL_S):
            return
        self._last = now
        tokens_before, share_before = self._resumed_at
        spent, done = now - self._start, share - share_before
        left = 0.0 if end else spent * (1 - share) / done if done > 0 else None
        rate = (tokens - tokens_before) / spent if spent > 0 else 0.0
        self._callback(Progress(batches, tokens, share, rate, left))

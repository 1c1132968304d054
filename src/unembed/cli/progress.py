"""Show the progress of a long computation as one line on stderr, updated in place."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

from unembed.results import format_number

Listener = Callable[[str, int, int | None], None]
_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Generator[None]:
    """Context manager inside which every `ProgressLine` also calls `listener(stage, done, total)`."""
    before = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(before)


class ProgressLine:
    """A line on stderr that shows the progress of a computation.

    If stderr is not a terminal, nothing is printed, or with `minutes` a new line every minute.
    """

    def __init__(self, *, minutes: bool = False) -> None:
        """Create a line that is empty until the first call."""
        self._shown, self._minutes = sys.stderr.isatty(), minutes
        self._last, self._stage, self._began = 0.0, "", 0.0

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Show that `done` of `total` steps of a stage are done; updates the line at most ten times a second."""
        if (listener := _LISTENER.get()) is not None:
            listener(stage, done, total)
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._began = stage, now
            self._last = now if self._minutes and not self._shown else self._last
        if now - self._last < (0.1 if self._shown else 60) or not (self._shown or self._minutes):
            return
        self._last = now
        spent = now - self._began
        counted = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        left = f", {duration(spent / done * (total - done))} left" if total and done and spent > 1 else ""
        rate = f", {format_number(done / spent, decimals=0)} a second" if done and spent > 1 else ""
        start, end = ("\r\x1b[2K", "") if self._shown else ("", "\n")
        print(f"{start}{stage}: {counted}{rate}{left}", end=end, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the line."""
        if self._shown and self._stage:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def duration(seconds: int | float) -> str:
    """Format a number of seconds: "8 s", "12 min", "1.5 h"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{format_number(seconds / 3600, decimals=1)} h"

"""Delay Ctrl-C until a moment at which a program can stop safely."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt(enabled: bool) -> Iterator[threading.Event]:
    """A context in which the first Ctrl-C only sets an event, and a second one interrupts at once.

    It has an effect in the main thread only.
    """
    event = threading.Event()
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.getsignal(signal.SIGINT)

    def set_event(number: int, frame: FrameType | None) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, set_event)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)

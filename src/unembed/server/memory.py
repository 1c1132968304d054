"""The process's memory while it serves: seldom searched for garbage, and kept from answer to answer."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_BETWEEN_SEARCHES = 20_000
"""Lists and the like that are made between two searches for garbage: a few traces' worth, not a part of one."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's names, in malloc.h, for how much free memory it keeps and from what size on it keeps none."""
_KEPT = 2**26
"""Bytes kept: several times what reading the stream in the vocabulary takes and frees, a block of scores at a time."""
_BLOCK = 2**25
"""The largest value that glibc takes for the other."""


@contextmanager
def held() -> Iterator[None]:
    """While inside, answers are not held up by memory."""
    gc.freeze()  # or a search for garbage through all that was imported holds up an answer for half a second
    often = gc.get_threshold()
    gc.set_threshold(_BETWEEN_SEARCHES, *often[1:])
    # Left to itself, glibc hands every block of scores back to the system and asks for it anew: a fifth of a reading's
    # time. Once set, this holds as long as the process.
    if (mallopt := _of_glibc("mallopt")) is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _BLOCK)
    try:
        yield
    finally:
        gc.set_threshold(*often)
        gc.unfreeze()


def give_back() -> None:
    """Return freed memory to the system, a few milliseconds.

    The tensors of traces, of all sizes and freed in another order than made, leave holes that glibc keeps: a server's
    memory would rise for hundreds of traces.
    """
    if (trim := _of_glibc("malloc_trim")) is not None:
        trim(0)


def _of_glibc(name: str) -> Any:
    """A function of the C library, where that is glibc; other allocators have no such calls."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None

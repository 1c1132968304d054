"""Return freed memory to the operating system.

The C library does not return freed memory by itself, but reuses it for later allocations. After a prompt of 500 tokens,
the process would occupy some hundred MB more than its tensors need.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache


def return_freed_memory() -> None:
    """Return the memory that was freed; does nothing where the C library is not glibc."""
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None

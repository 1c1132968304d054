"""The process's memory while it serves.

Both measures are of the CPython and glibc runtimes, and each has one measured effect:

- `gc.freeze`: a full garbage collection over everything that torch and transformers import takes half a second, and
  it ran in the middle of requests.
- `malloc_trim`: traces are tensors of all sizes that are freed in another order than they were made. glibc retains the
  holes, so the memory of a server rose for hundreds of traces; a trim takes a few milliseconds.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def imports_frozen() -> Generator[None]:
    """Inside, garbage collection skips objects that were imported before."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def release_freed_memory() -> None:
    """Return freed memory to the system where the allocator is glibc's; elsewhere nothing happens."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)

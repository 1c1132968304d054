"""The process's memory while it serves."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys

import pytest

from unembed.server.memory import imports_frozen

_GLIBC = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim")
_TRIMMED = """
import ctypes, resource
from unembed.server.memory import release_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes, libc.memset.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() // 2**20
blocks = [libc.malloc(2**16) for _ in range(1024)]
for block in blocks:
    libc.memset(block, 1, 2**16)
for block in blocks[:-1]:  # the last one stays above the hole
    libc.free(block)
full = resident()
release_freed_memory()
print(full - resident())
"""


def test_imports_are_frozen_only_while_serving() -> None:
    before = gc.get_freeze_count()
    with imports_frozen():
        assert gc.get_freeze_count() > before
    assert not gc.get_freeze_count()


@pytest.mark.skipif(not _GLIBC, reason="glibc's allocator only")
def test_freed_memory_returns_to_the_system() -> None:
    found = subprocess.run([sys.executable, "-c", _TRIMMED], capture_output=True, text=True, check=True)
    assert int(found.stdout) > 48, "of 64 MiB"

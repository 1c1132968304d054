"""The process's memory while it serves."""

from __future__ import annotations

import ctypes
import gc
import mmap
import subprocess
import sys

import pytest

from unembed.server.memory import held

_GLIBC = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt")
_FAULTS = """
import contextlib, ctypes, resource
from unembed.server.memory import give_back, held
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes, libc.memset.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() // 2**20
def blocks(size=2**22):
    for _ in range(3):
        made = [libc.malloc(size) for _ in range(4)]
        for block in made:
            libc.memset(block, 1, size)
        for block in made:
            libc.free(block)
with {}:
    blocks()
    before = faults()
    blocks()
    print(faults() - before)
    full = resident()
    give_back()
    print(full - resident())
"""


def test_searches_for_garbage_are_as_often_as_before_once_serving_has_ended() -> None:
    before = gc.get_threshold()
    with held():
        assert gc.get_threshold()[0] > before[0] and gc.get_freeze_count()
    assert gc.get_threshold() == before and not gc.get_freeze_count()


@pytest.mark.skipif(not _GLIBC, reason="glibc's allocator only")
def test_freed_blocks_are_kept_until_they_are_given_back() -> None:
    """Twelve blocks of 4 MiB are 12,288 pages of 4 KiB; each that the system gives anew is a fault."""

    def measured(how: str) -> tuple[int, ...]:
        found = subprocess.run([sys.executable, "-c", _FAULTS.format(how)], capture_output=True, text=True, check=True)
        return tuple(int(line) for line in found.stdout.split())

    (kept, given), (anew, _) = measured("held()"), measured("contextlib.nullcontext()")
    assert kept < 100 and anew > 2**20 * 12 // mmap.PAGESIZE
    assert given > 12

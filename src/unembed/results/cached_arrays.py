"""Compute arrays once, and read them from a file in the cache folder afterwards."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from unembed.errors import UnembedError
from unembed.results.cache import cache_folder
from unembed.results.files import write_whole
from unembed.version import __version__


def cached_arrays(
    key: str, make: Callable[[], Mapping[str, np.ndarray]], shipped: Path | None = None
) -> Mapping[str, np.ndarray]:
    """Return the arrays stored under a key; if there are none, compute them and write them to the cache folder.

    If the file is damaged, the arrays are computed again. If the folder cannot be written to, they are not stored.

    Args:
        key: a hash of everything that determines the arrays, except the version of unembed.
        make: the function that computes the arrays.
        shipped: a folder of the package that may contain the file; it is searched first.
    """
    cached = cache_folder() / f"{key}-{__version__}.npz"
    for path in (*([] if shipped is None else [shipped / f"{key}.npz"]), cached):
        with suppress(Exception):  # a damaged file can raise errors of NumPy, zipfile, zlib or tokenize
            stored = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
            return {name: stored[name] for name in stored.files}
    made = make()
    with suppress(OSError, UnembedError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        packed = io.BytesIO()
        np.savez_compressed(packed, allow_pickle=False, **made)
        write_whole(cached, packed.getvalue())
    return made

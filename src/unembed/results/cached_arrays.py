"""Arrays that are computed once and read from a file of the cache folder afterwards."""

from __future__ import annotations

import io
import zipfile
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
    """The arrays of a key: read from a file, else made, and then written to the cache folder.

    A file that is damaged is made again. Where the folder cannot be written to, the next process makes them again.

    Args:
        key: a hash of everything that determines the arrays but the version.
        make: computes them.
        shipped: a folder that may have the file, looked at first.
    """
    cached = cache_folder() / f"{key}-{__version__}.npz"
    for path in (*([] if shipped is None else [shipped / f"{key}.npz"]), cached):
        with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            stored = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
            return {name: stored[name] for name in stored.files}
    made = make()
    with suppress(OSError, UnembedError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        packed = io.BytesIO()
        np.savez_compressed(packed, allow_pickle=False, **made)
        write_whole(cached, packed.getvalue())
    return made

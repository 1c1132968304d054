"""Find the cache folder, for results that are computed once and reused, such as default indexes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "UNEMBED_CACHE"


def cache_folder() -> Path:
    """Return the cache folder: `$UNEMBED_CACHE`, else the folder `unembed` in the platform's cache folder.

    The platform's cache folder is `~/Library/Caches` on macOS, `%LOCALAPPDATA%` on Windows, and `$XDG_CACHE_HOME` or
    `~/.cache` elsewhere.
    """
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    if sys.platform == "darwin":
        platform = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        platform = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        platform = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return platform / "unembed"

"""Store the token of an address on this machine for a day, so that an open tab works again after a restart.

It lies in the user's cache folder, in a file that only the user can read, as Jupyter does with its own.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from unembed.server.auth import new_token

LIFETIME = 24 * 3600
"""Seconds after its last use in which a token is used again."""


def session_token(port: int, folder: Path) -> str:
    """Return the token last used on a port, or a new one if that is older than a day or cannot be trusted.

    If the folder cannot be written to, only the next restart loses the token.
    """
    path = folder / f"explorer-{port}.token"
    token = _stored_token(path) or new_token()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # readers of the old file cannot read the new one
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token)
    except OSError:
        pass
    return token


def _stored_token(path: Path) -> str | None:
    """Return a token that only this user could read and write, if it was used within its lifetime."""
    try:
        found = path.lstat()
        is_private = os.name == "nt" or (found.st_uid == os.getuid() and not found.st_mode & 0o077)
        if path.is_symlink() or not is_private or not 0 <= time.time() - found.st_mtime < LIFETIME:
            return None
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return token if re.fullmatch(r"[\w-]{32}", token, re.ASCII) else None

"""Store the access token of a port for a day, so that open tabs of the explorer still work after a restart.

The file is in the cache folder and only the user can read it, as with Jupyter's tokens.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from unembed.server.auth import new_token

LIFETIME = 24 * 3600
"""Number of seconds after the last start of the server in which a stored token is used again."""


def session_token(port: int, folder: Path) -> str:
    """Return the token last used on a port; a new one if it is older than a day or other users could read its file.

    The token is stored for the next start. If the folder cannot be written to, the next start creates a new token.
    """
    path = folder / f"explorer-{port}.token"
    token = _stored_token(path) or new_token()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # a process that has the old file open cannot read the new one
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token)
    except OSError:
        pass
    return token


def _stored_token(path: Path) -> str | None:
    """Return the token in a file; None if it is too old, is not a token, or other users can access the file."""
    try:
        found = path.lstat()
        is_private = os.name == "nt" or (found.st_uid == os.getuid() and not found.st_mode & 0o077)
        if path.is_symlink() or not is_private or not 0 <= time.time() - found.st_mtime < LIFETIME:
            return None
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return token if re.fullmatch(r"[\w-]{32}", token, re.ASCII) else None

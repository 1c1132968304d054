"""Addresses kept in a file beside the index's labels: an append-only table, so that a link outlives the server."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

NAME = "sessions.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (name TEXT PRIMARY KEY, address TEXT NOT NULL, made TEXT NOT NULL);
CREATE TRIGGER IF NOT EXISTS sessions_are_not_changed BEFORE UPDATE ON sessions
BEGIN SELECT RAISE(ABORT, 'sessions are append-only'); END;
CREATE TRIGGER IF NOT EXISTS sessions_are_not_deleted BEFORE DELETE ON sessions
BEGIN SELECT RAISE(ABORT, 'sessions are append-only'); END;
"""
_LARGEST = 64 * 1024 * 1024
"""Bytes of addresses that one file holds."""


class KeptAddresses:
    """Addresses by name. The file is made when the first one is kept."""

    def __init__(self, folder: Path) -> None:
        """Name the file; nothing is opened yet."""
        self.path = folder / NAME

    def put(self, name: str, address: str) -> bool:
        """Keep an address; whether it is kept: not where nobody may write, or the file is full."""
        try:
            with self._open() as connection, connection:
                held = connection.execute("SELECT COALESCE(SUM(LENGTH(address)), 0) FROM sessions").fetchone()[0]
                if held + len(address) > _LARGEST:
                    return False
                made = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
                connection.execute("INSERT OR IGNORE INTO sessions VALUES (?, ?, ?)", (name, address, made))
            return True
        except sqlite3.Error:
            return False

    def get(self, name: str) -> str | None:
        """The address of a name, or nothing."""
        if not self.path.exists():
            return None
        try:
            with self._open() as connection:
                found = connection.execute("SELECT address FROM sessions WHERE name = ?", (name,)).fetchone()
            return found and str(found[0])
        except sqlite3.Error:
            return None

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=10)) as connection:
            connection.executescript(_SCHEMA)
            yield connection

"""Store the explorer's saved views and presets (named lists of edits) in a SQLite file in the index's folder.

A saved view is the part of the page's URL from `#/` on, its "address". It never changes, because links refer to it. A
preset can be replaced and deleted. Without an index, presets are stored in memory.
"""

from __future__ import annotations

import datetime
import json
import sqlite3
import threading
import weakref
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from unembed.errors import IndexFault, InvalidInput

NAME = "sessions.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (name TEXT PRIMARY KEY, address TEXT NOT NULL, made TEXT NOT NULL);
CREATE TRIGGER IF NOT EXISTS sessions_are_not_changed BEFORE UPDATE ON sessions
BEGIN SELECT RAISE(ABORT, 'sessions are append-only'); END;
CREATE TRIGGER IF NOT EXISTS sessions_are_not_deleted BEFORE DELETE ON sessions
BEGIN SELECT RAISE(ABORT, 'sessions are append-only'); END;
CREATE TABLE IF NOT EXISTS presets (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, edits TEXT NOT NULL, model TEXT NOT NULL,
    made TEXT NOT NULL
);
"""
_MAX_BYTES = 64 * 1024 * 1024
"""Maximum number of bytes of addresses in one file."""
MAX_PRESETS = 200


class SavedAddresses:
    """Saved addresses by name. The file is created when the first address is saved."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def put(self, name: str, address: str) -> bool:
        """Save an address. Return False if the folder cannot be written to or the file is full."""
        try:
            with _connection(self.path) as connection, connection:
                size = connection.execute("SELECT COALESCE(SUM(LENGTH(address)), 0) FROM sessions").fetchone()[0]
                if size + len(address) > _MAX_BYTES:
                    return False
                connection.execute("INSERT OR IGNORE INTO sessions VALUES (?, ?, ?)", (name, address, _now()))
            return True
        except sqlite3.Error:
            return False

    def get(self, name: str) -> str | None:
        """Return the address that is saved under a name; None if there is none."""
        if not self.path.exists():
            return None
        try:
            with _connection(self.path) as connection:
                row = connection.execute("SELECT address FROM sessions WHERE name = ?", (name,)).fetchone()
            return None if row is None else str(row[0])
        except sqlite3.Error:
            return None


class Presets:
    """Presets (lists of edits by name), in the index's folder; without an index, in memory until the server stops."""

    def __init__(self, folder: Path | None) -> None:
        self.path = None if folder is None else folder / NAME
        self._in_memory = None if folder else sqlite3.connect(":memory:", check_same_thread=False)
        if self._in_memory is not None:
            weakref.finalize(self, self._in_memory.close)
        self._lock = threading.Lock()

    def put(self, name: str, edits: list[dict[str, Any]], model: str) -> int:
        """Save edits under a name, replacing a preset of the same name, and return the preset's id.

        Raises:
            InvalidInput: there are too many presets, or the name cannot be stored.
            IndexFault: the folder cannot be written.
        """
        try:
            with self._open() as connection, connection:
                others = connection.execute("SELECT COUNT(*) FROM presets WHERE name != ?", (name,)).fetchone()[0]
                if others >= MAX_PRESETS:
                    why = f"{MAX_PRESETS} presets are saved already"
                    raise InvalidInput(f"preset {name!r}", why=why, instead="Delete one of the presets")
                cursor = connection.execute(
                    "INSERT OR REPLACE INTO presets (name, edits, model, made) VALUES (?, ?, ?, ?)",
                    (name, json.dumps(edits), model, _now()),
                )
                return int(cursor.lastrowid or 0)
        except UnicodeEncodeError as error:
            raise InvalidInput(
                "the name of a preset", why="it contains an unpaired surrogate, which is not a character"
            ) from error

    def all(self) -> list[dict[str, Any]]:
        """Return all presets, sorted by name."""
        if self._is_missing():
            return []
        with self._open() as connection:
            rows = connection.execute("SELECT id, name, edits, model, made FROM presets ORDER BY name").fetchall()
        return [dict(zip(("id", "name", "edits", "model", "made"), row, strict=True)) for row in rows]

    def remove(self, number: int) -> bool:
        """Delete the preset with this id; return True if it existed."""
        if self._is_missing():
            return False
        with self._open() as connection, connection:
            return connection.execute("DELETE FROM presets WHERE id = ?", (number,)).rowcount > 0

    def _is_missing(self) -> bool:
        return self.path is not None and not self.path.exists()

    @contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        if self._in_memory is not None:
            with self._lock:
                self._in_memory.executescript(_SCHEMA)
                yield self._in_memory
            return
        assert self.path is not None
        try:
            with _connection(self.path) as connection:
                yield connection
        except sqlite3.Error as error:
            raise IndexFault(
                f"cannot use {self.path}",
                why=str(error),
                instead="Check the folder's permissions and the free disk space",
            ) from error


@contextmanager
def _connection(path: Path) -> Generator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, timeout=10)) as connection:
        connection.executescript(_SCHEMA)
        yield connection


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")

"""What people keep in a file beside the index's labels, so that it outlives the server: addresses and presets.

Addresses are never changed, since links name them. A preset is replaced by one of the same name, and can be deleted.
"""

from __future__ import annotations

import datetime
import itertools
import json
import sqlite3
from collections.abc import Iterator
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
_LARGEST = 64 * 1024 * 1024
"""Bytes of addresses that one file holds."""
MAX_PRESETS = 200


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
                connection.execute("INSERT OR IGNORE INTO sessions VALUES (?, ?, ?)", (name, address, _now()))
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

    def _open(self) -> Any:
        return _opened(self.path)


class KeptPresets:
    """Edits by name."""

    def __init__(self, folder: Path) -> None:
        """Name the file; nothing is opened yet."""
        self.path = folder / NAME

    def put(self, name: str, edits: list[dict[str, Any]], model: str) -> int:
        """Keep edits, in the place of those of the same name; the number they got.

        Raises:
            InvalidInput: there are too many, or the name cannot be stored.
            IndexFault: nobody may write there.
        """
        try:
            with self._open() as connection, connection:
                others = connection.execute("SELECT COUNT(*) FROM presets WHERE name != ?", (name,)).fetchone()[0]
                _room_for(name, others)
                done = connection.execute(
                    "INSERT OR REPLACE INTO presets (name, edits, model, made) VALUES (?, ?, ?, ?)",
                    (name, json.dumps(edits), model, _now()),
                )
                return int(done.lastrowid or 0)
        except UnicodeEncodeError as error:
            raise InvalidInput("the name of a preset", why="it holds half of a character") from error

    def all(self) -> list[dict[str, Any]]:
        """All presets, by name."""
        if not self.path.exists():
            return []
        with self._open() as connection:
            rows = connection.execute("SELECT id, name, edits, model, made FROM presets ORDER BY name").fetchall()
        return [dict(zip(("id", "name", "edits", "model", "made"), row, strict=True)) for row in rows]

    def remove(self, number: int) -> bool:
        """Delete a preset; whether it was there."""
        if not self.path.exists():
            return False
        with self._open() as connection, connection:
            return connection.execute("DELETE FROM presets WHERE id = ?", (number,)).rowcount > 0

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with _opened(self.path) as connection:
                yield connection
        except sqlite3.Error as error:
            raise IndexFault(
                f"cannot use {self.path}", why=str(error), instead="Check who may write there, and what room is left"
            ) from error


class PassingPresets:
    """The same until the server stops."""

    def __init__(self) -> None:
        """None yet."""
        self._kept: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count(1)

    def put(self, name: str, edits: list[dict[str, Any]], model: str) -> int:
        """Keep edits, in the place of those of the same name; the number they got.

        Raises:
            InvalidInput: there are too many.
        """
        _room_for(name, len(self._kept.keys() - {name}))
        number = next(self._numbers)
        self._kept[name] = {"id": number, "name": name, "edits": json.dumps(edits), "model": model, "made": _now()}
        return number

    def all(self) -> list[dict[str, Any]]:
        """All presets, by name."""
        return [one for _, one in sorted(self._kept.items())]

    def remove(self, number: int) -> bool:
        """Delete a preset; whether it was there."""
        name = next((name for name, one in list(self._kept.items()) if one["id"] == number), None)
        return name is not None and self._kept.pop(name, None) is not None


def _room_for(name: str, others: int) -> None:
    if others >= MAX_PRESETS:
        raise InvalidInput(f"preset {name!r}", why=f"{MAX_PRESETS} are kept already", instead="Delete one of them")


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, timeout=10)) as connection:
        connection.executescript(_SCHEMA)
        yield connection


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")

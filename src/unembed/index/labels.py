"""Labels of memories (FFN neurons) and attention heads, in an SQLite table.

Several processes can write at once. Rows are only added, never changed or deleted: withdrawing a label adds a row, so
the table stores who wrote what and when.
"""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unembed.annotation.label import Label as Label
from unembed.errors import IndexFault, InvalidInput
from unembed.validation import as_int, as_str

NAME = "labels.sqlite"
HEAD = "head"
"""The kind of a label of an attention head; labels of all other kinds are of memories."""
_OF = {"memory": ["kind != 'head'"], HEAD: ["kind = 'head'"], "all": []}
COLUMNS = ("id", "layer", "index", "kind", "label", "author", "made", "notes")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS labels (
    id INTEGER PRIMARY KEY AUTOINCREMENT, layer INTEGER NOT NULL, "index" INTEGER NOT NULL, kind TEXT NOT NULL,
    label TEXT NOT NULL, author TEXT NOT NULL, made TEXT NOT NULL, notes TEXT NOT NULL, withdraws INTEGER
);
CREATE INDEX IF NOT EXISTS labels_of_memory ON labels (layer, "index");
CREATE TRIGGER IF NOT EXISTS labels_are_not_changed BEFORE UPDATE ON labels
BEGIN SELECT RAISE(ABORT, 'labels are append-only'); END;
CREATE TRIGGER IF NOT EXISTS labels_are_not_deleted BEFORE DELETE ON labels
BEGIN SELECT RAISE(ABORT, 'labels are append-only'); END;
"""
_NOT_WITHDRAWN = "withdraws IS NULL AND id NOT IN (SELECT withdraws FROM labels WHERE withdraws IS NOT NULL)"
_LONGEST = 10_000


class Labels:
    """The labels of an index; the first label creates the file."""

    def __init__(self, folder: Path) -> None:
        """Store the path; no file is opened yet."""
        self.path = folder / NAME

    def add(self, labels: Sequence[Label]) -> list[int]:
        """Add labels, and return their numbers; errors are those of `Index.add_labels`."""
        rows = [(*_row(label), None) for label in labels]
        return self._append(rows) if rows else []

    def withdraw(self, number: int, *, author: str) -> None:
        """Withdraw a label.

        Raises:
            InvalidInput: there is no such label, or it was withdrawn before.
        """
        number, author = as_int("label", number), as_str("author", author)
        matching = [row for row in self.rows(of="all") if row["id"] == number]
        if not matching:
            raise InvalidInput(f"label {number}", why="there is no such label, or it was withdrawn before")
        row = matching[0]
        self._append([(row["layer"], row["index"], row["kind"], row["label"], author, "{}", number)])

    def rows(self, layer: int | None = None, index: int | None = None, *, of: str = "memory") -> list[dict[str, Any]]:
        """Return the labels of one memory or head, of a layer, or all, oldest first; withdrawn ones are left out."""
        if as_str("of", of) not in _OF:
            raise InvalidInput(f"labels of {of!r}", why="it must be 'memory', 'head' or 'all'")
        if not self.path.exists():
            return []
        wanted, values = [_NOT_WITHDRAWN, *_OF[of]], []
        for name, value in (("layer", layer), ('"index"', index)):
            if value is not None:
                wanted.append(f"{name} = ?")
                values.append(value)
        columns = ", ".join(f'"{name}"' for name in COLUMNS)
        with self._open(reading=True) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'labels'").fetchone():
                return []  # another process has created the file, but not yet the table
            found = connection.execute(
                f"SELECT {columns} FROM labels WHERE {' AND '.join(wanted)} ORDER BY id", values
            ).fetchall()
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in found]
        return [row | {"notes": json.loads(row["notes"])} for row in rows]

    def columns(self) -> dict[str, list[Any]]:
        """Return all labels but the withdrawn ones as a dict of columns for SQL, with notes as text."""
        rows = self.rows(of="all")
        return {name: [str(row[name]) if name == "notes" else row[name] for row in rows] for name in COLUMNS}

    def _append(self, rows: Sequence[tuple[Any, ...]]) -> list[int]:
        made = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        insert = (
            'INSERT INTO labels (layer, "index", kind, label, author, notes, withdraws, made) '
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        )
        with self._open() as connection, connection:
            return [int(connection.execute(insert, (*row, made)).lastrowid or 0) for row in rows]

    @contextmanager
    def _open(self, *, reading: bool = False) -> Iterator[sqlite3.Connection]:
        """Open a connection. With `reading`, no file is created, so that labels can be read in a read-only folder.

        SQLite's mode "rw" is used for reading, too, because it can undo the unfinished write of a killed process, and
        mode "ro" cannot.
        """
        mode = "rw" if reading else "rwc"
        try:
            connection = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode={mode}", uri=True, timeout=10)
        except sqlite3.Error as error:
            raise IndexFault(f"cannot open {self.path}", why=str(error)) from error
        try:
            if not reading:
                connection.execute("PRAGMA journal_mode = DELETE")
                connection.executescript(_SCHEMA)
            yield connection
        except sqlite3.OperationalError as error:
            raise IndexFault(
                f"cannot use {self.path}", why=str(error), instead="Check the permissions and the free space there"
            ) from error
        except sqlite3.DatabaseError as error:
            raise IndexFault(f"{self.path} is damaged", why=str(error), instead="Restore a copy of it") from error
        finally:
            connection.close()


def _row(given: Label) -> tuple[int, int, str, str, str, str]:
    label, author, kind = as_str("label", given.label), as_str("author", given.author), as_str("kind", given.kind)
    if not label.strip() or len(label) > _LONGEST:
        raise InvalidInput(f"a label of {len(label)} characters", why=f"its length must be 1 to {_LONGEST:,}")
    try:
        notes = json.dumps(dict(given.notes or {}), ensure_ascii=False, allow_nan=False)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidInput(
            "the notes of a label", why=str(error), instead="Use strings, numbers, booleans, lists and dictionaries"
        ) from error
    return given.layer, given.index, kind, label, author, notes

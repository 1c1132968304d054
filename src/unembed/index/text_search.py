"""Full-text search in the texts on which memories (FFN neurons) fire most.

Such a text is a prefix: a segment of the corpus up to the token on which the memory fires. On disk, SQLite's FTS5
indexes whole segments (without storing their text). A search first finds the segments that contain all words. Then FTS5
in memory searches the prefixes in these segments. No result is missed, since a prefix that contains all words is part
of a segment that contains them.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from unembed.errors import IndexFault, InvalidInput
from unembed.validation import as_str

_TERM = re.compile(r'"([^"]*)"(\*?)|(\S+)')
_AT_ONCE = 2048
_TOKENIZE = "tokenize = 'unicode61 remove_diacritics 0'"


def write_search(path: Path, segments: Iterable[tuple[int, str]]) -> None:
    """Write the search file for segments, given as pairs of number and text.

    Raises:
        OSError: the disk is full.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")  # the file is flushed to disk once, when it is complete
        connection.execute(f"CREATE VIRTUAL TABLE segments USING fts5(text, content = '', {_TOKENIZE})")
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO segments (rowid, text) VALUES (?, ?)", segments)
        connection.execute("INSERT INTO segments (segments) VALUES ('optimize')")
        connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        raise OSError(f"{error}, perhaps because the disk is full") from error
    finally:
        connection.close()


def match_of(query: str) -> str:
    """Convert a query to FTS5 syntax: all words and "quoted phrases" must occur; `word*` matches a beginning.

    Raises:
        InvalidInput: the query contains no letter or digit.
    """
    terms = []
    for phrase, phrase_star, word in _TERM.findall(as_str("search for", query)):
        star = phrase_star or ("*" if word.endswith("*") else "")
        words = phrase or word.rstrip("*")
        if any(c.isalnum() for c in words):
            terms.append(f'"{words.replace(chr(34), " ")}"{star}')
    if not terms:
        raise InvalidInput(f"search for {query!r}", why="it contains no word", instead="Give a word to search for")
    return " ".join(terms)


def segments_matching(path: Path, match: str) -> Int[np.ndarray, " found"]:
    """Return the numbers of the segments that contain all words, in order.

    Raises:
        IndexFault: the search file is missing or damaged.
    """
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            found = connection.execute("SELECT rowid FROM segments WHERE segments MATCH ?", (match,)).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise IndexFault(
            f"cannot search {path}", why=str(error), instead="Run the build again: it repairs the index"
        ) from error
    return np.sort(np.fromiter((row[0] for row in found), np.int64, len(found)))


def prefixes_matching(texts: Sequence[str], match: str) -> list[int]:
    """Return the indices of the texts that contain all words."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute(f"CREATE VIRTUAL TABLE prefixes USING fts5(text, content = '', {_TOKENIZE})")
        connection.executemany("INSERT INTO prefixes (rowid, text) VALUES (?, ?)", enumerate(texts))
        return sorted(
            row[0] for row in connection.execute("SELECT rowid FROM prefixes WHERE prefixes MATCH ?", (match,))
        )
    finally:
        connection.close()


def inside(
    positions: Int[np.ndarray, " trigger"], start: Int[np.ndarray, " starts"], segments: Int[np.ndarray, " found"]
) -> Int[np.ndarray, " chosen"]:
    """Return the indices of the positions that lie in one of the given segments.

    Args:
        start: the position at which each segment of the corpus starts.
        segments: the numbers of the segments, sorted.
    """
    begin, end = start[segments].astype(positions.dtype), start[segments + 1]
    if not len(begin):
        return np.zeros(0, dtype=np.int64)
    at = np.searchsorted(begin, positions, side="right") - 1
    return np.flatnonzero((at >= 0) & (positions < end[at]))


def some_at_a_time(numbers: Int[np.ndarray, " chosen"]) -> Iterator[Int[np.ndarray, " some"]]:
    """Yield `numbers` in chunks of 2,048."""
    return (numbers[i : i + _AT_ONCE] for i in range(0, len(numbers), _AT_ONCE))

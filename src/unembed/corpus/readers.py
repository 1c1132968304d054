"""Read documents from files: plain text, WikiText, JSON lines, Parquet.

Documents are read one at a time, so a file may be larger than memory.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from pathlib import Path

from unembed.corpus.markup import articles, looks_like_wikitext
from unembed.errors import CorpusUnreadable

SHIPPED = files("unembed.corpus") / "shipped" / "wikitext" / "valid.txt"


@dataclass(frozen=True)
class Reading:
    """Options for reading files.

    Attributes:
        column: the field of JSON lines or Parquet that contains the text.
        errors: for bytes that are not UTF-8: "strict" stops, "replace" inserts U+FFFD, "ignore" leaves them out.
        markup: "wikitext", "plain", or "auto": WikiText if a file starts with the title of an article.
    """

    column: str = "text"
    errors: str = "strict"
    markup: str = "auto"


def paths_of(source: str | Path) -> list[Path]:
    """Return the files that a path, a folder or a pattern names, in alphabetical order.

    Raises:
        CorpusUnreadable: there is no such file.
    """
    path = Path(source).expanduser()
    # For a text that is not a valid file name, os.path.isfile returns False, whereas Path.is_file may raise an error.
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        kinds = (".txt", ".tokens", ".jsonl", ".ndjson", ".parquet")
        found = sorted(p for p in path.rglob("*") if p.suffix in kinds)
        if found:
            return found
        raise CorpusUnreadable(f"folder {path}", why=f"it contains no file that ends in {', '.join(kinds)}")
    found = sorted(Path(p) for p in glob.glob(str(path), recursive=True) if os.path.isfile(p))
    if not found:
        raise CorpusUnreadable(
            f"corpus {str(source)!r}", why="no file has this name or matches this pattern", instead="Check the path"
        )
    return found


def documents_of(path: Path, reading: Reading) -> Iterator[tuple[str, str, float]]:
    """Yield (name, text, share of the file read) for every document of one file.

    The file extension decides the format; anything else is plain text.

    Raises:
        CorpusUnreadable: the file cannot be read or decoded, or a row has no text in the column.
    """
    try:
        if path.suffix in (".jsonl", ".ndjson"):
            yield from _json_lines(path, reading)
        elif path.suffix == ".parquet":
            yield from _parquet(path, reading)
        else:
            yield from _text(path, reading)
    except OSError as error:
        raise CorpusUnreadable(f"{path}", why=error.strerror or str(error)) from error


class _Lines:
    """Iterates over the decoded lines of a file, one by one, so that an error can name the byte that is not UTF-8."""

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path, self._errors = path, reading.errors
        self._size, self._at = max(path.stat().st_size, 1), 0

    @property
    def share(self) -> float:
        """The share of the file's bytes read so far."""
        return self._at / self._size

    def __iter__(self) -> Iterator[str]:
        with self._path.open("rb") as file:
            for raw in file:
                if self._at == 0:
                    self._refuse_wide(raw)
                try:  # files from Windows may begin with a byte order mark
                    line = raw.decode("utf-8" if self._at else "utf-8-sig", errors=self._errors)
                except UnicodeDecodeError as error:
                    raise CorpusUnreadable(
                        f"{self._path}, byte {self._at + error.start}",
                        why=f"0x{raw[error.start]:02x} is not UTF-8 here",
                        instead="Convert it to UTF-8, or read it with errors='replace' (index build --errors replace)",
                    ) from error
                self._at += len(raw)
                yield f"{line[:-2]}\n" if line.endswith("\r\n") else line

    def _refuse_wide(self, raw: bytes) -> None:
        if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise CorpusUnreadable(
                str(self._path), why="it is UTF-16, not UTF-8 text", instead="Save it as UTF-8, and read it again"
            )


def _text(path: Path, reading: Reading) -> Iterator[tuple[str, str, float]]:
    source = _Lines(path, reading)
    lines = iter(source)
    first: list[str] = []
    for line in lines:
        first.append(line)
        if line.strip():
            break
    wikitext = reading.markup == "wikitext" or (reading.markup == "auto" and looks_like_wikitext(first))
    every = chain(first, lines)
    found = articles(every) if wikitext else _paragraph_documents(path.name, every)
    yield from ((name or path.name, text, source.share) for name, text in found)


def _paragraph_documents(name: str, lines: Iterator[str], at_most: int = 1 << 20) -> Iterator[tuple[str, str]]:
    """Yield a text as one document; a text of over `at_most` characters as several documents, split at line ends."""
    part_lines: list[str] = []
    size, part = 0, 0
    for line in lines:
        part_lines.append(line)
        size += len(line)
        if size >= at_most:
            yield (name if part == 0 else f"{name} part {part + 1}"), "".join(part_lines)
            part_lines, size, part = [], 0, part + 1
    if part_lines:
        yield (name if part == 0 else f"{name} part {part + 1}"), "".join(part_lines)


def _json_lines(path: Path, reading: Reading) -> Iterator[tuple[str, str, float]]:
    lines = _Lines(path, reading)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise CorpusUnreadable(where, why=f"it is not JSON: {error.msg} at column {error.colno}") from error
        if not isinstance(row, dict) or not isinstance(row.get(reading.column), str):
            has = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
            raise CorpusUnreadable(
                where,
                why=f"it has no text under {reading.column!r}, only {has}",
                instead="Name the field with column= (index build --column)",
            )
        yield str(row.get("title") or row.get("id") or f"{path.name}:{number}"), row[reading.column], lines.share


def _parquet(path: Path, reading: Reading) -> Iterator[tuple[str, str, float]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        if reading.column not in file.schema_arrow.names:
            raise CorpusUnreadable(
                f"{path}",
                why=f"it has no column {reading.column!r}, only {', '.join(file.schema_arrow.names)}",
                instead="Name the column of the text with column= (index build --column)",
            )
        number = 0
        for rows in file.iter_batches(batch_size=256, columns=[reading.column]):
            for text in rows.column(0).to_pylist():
                if isinstance(text, str):
                    yield f"{path.name}:{number}", text, (number + 1) / file.metadata.num_rows
                elif text is not None:
                    raise CorpusUnreadable(f"{path}, row {number}", why=f"column {reading.column!r} is not text")
                number += 1
    except pa.ArrowException as error:
        raise CorpusUnreadable(f"{path}", why=f"it is not a readable Parquet file: {error}") from error

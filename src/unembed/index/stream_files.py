"""Tokenise an index's corpus and write the tokens to disk at once; later, open them as a memory map."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from unembed.corpus.token_stream import SEGMENT_COLUMNS, SegmentTable
from unembed.index.arrays import map_array, write_array
from unembed.index.manifest import FileEntry, write_file
from unembed.index.passages import Passages

if TYPE_CHECKING:
    from unembed.corpus import Segment

PART = "tokens"


def write_stream(
    folder: Path, segments: Iterable[Segment], progress: Callable[[int], None] | None = None
) -> list[FileEntry]:
    """Write the tokens of a corpus and a table of its segments.

    Memory: 36 bytes for each segment; tokens are written to disk at once.

    Args:
        segments: the segments of the corpus, in order.
        progress: called with the number of tokens written so far.

    Raises:
        CorpusUnreadable: the corpus has no tokens.
    """
    table = SegmentTable()
    columns: dict[str, np.ndarray] = {}

    def write_tokens(path: Path) -> None:
        with path.open("wb") as handle:
            _write_header(handle, 0)
            data = handle.tell()
            for segment in segments:
                handle.write(table.append(segment).tobytes())
                if progress is not None:
                    progress(table.end)
            columns.update(table.finish())
            handle.seek(0)
            _write_header(handle, table.end)
            assert handle.tell() == data, "NumPy leaves room for the first axis to grow"

    entries = [write_file(folder, "tokens/token.npy", PART, write_tokens)]
    for name, column in columns.items():
        entries.append(write_file(folder, f"tokens/{name}.npy", PART, lambda path, a=column: write_array(path, a)))
    return entries


def open_stream(folder: Path, strings: list[str]) -> Passages:
    """Open the tokens of an index's corpus as a memory map; `strings` is the text of every token of the vocabulary.

    Raises:
        IndexFault: a file is missing or cut short.
    """
    token = map_array(folder, "tokens/token.npy", shape=(None,), dtype=np.int32)
    start = map_array(folder, "tokens/start.npy", shape=(None,), dtype=np.int64)
    n = len(start) - 1
    columns = {
        name: map_array(folder, f"tokens/{name}.npy", shape=(n,), dtype=np.dtype(code))
        for name, code in SEGMENT_COLUMNS.items()
        if name != "start"
    }
    return Passages(token=token, start=start, strings=strings, **columns)


def _write_header(handle: BinaryIO, n: int) -> None:
    header = {"descr": "<i4", "fortran_order": False, "shape": (n,)}
    np.lib.format.write_array_header_1_0(handle, header)

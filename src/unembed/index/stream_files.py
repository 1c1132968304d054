"""The corpus written once as the model reads it, so that any trigger can be shown again without the corpus."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from unembed.corpus import Segment
from unembed.errors import CorpusUnreadable
from unembed.index.arrays import map_array, write_array
from unembed.index.manifest import FileEntry, write_file
from unembed.index.passages import Passages

PART = "tokens"
_COLUMNS = {"start": "q", "first": "q", "origin": "q", "document": "i", "sentence": "i", "after": "i"}
"""Columns of the segments, by type code: 64 and 32 bits."""


def write_stream(
    folder: Path, segments: Iterable[Segment], progress: Callable[[int], None] | None = None
) -> list[FileEntry]:
    """Write the token stream and its segments; tokens go to disk as they come, segments take 36 bytes each.

    Raises:
        CorpusUnreadable: the corpus holds no token.
    """
    columns = {name: array(code) for name, code in _COLUMNS.items()}

    def write_tokens(path: Path) -> None:
        with path.open("wb") as handle:
            _header(handle, 0)
            data = handle.tell()
            end, document, origin = 0, -1, 0
            for segment in segments:
                counted = segment.start + segment.skip
                if segment.document != document:
                    document, origin = segment.document, counted
                handle.write(segment.tokens[segment.skip :].numpy().astype("<i4").tobytes())
                row = (counted, segment.start + segment.lead, origin, document, segment.sentence, segment.next_token)
                for name, value in zip(_COLUMNS, row, strict=True):
                    columns[name].append(value)
                end = segment.start + len(segment)
                if progress is not None:
                    progress(end)
            if end == 0:
                raise CorpusUnreadable("the corpus holds no token", instead="Give one with text in it")
            columns["start"].append(end)
            handle.seek(0)
            _header(handle, end)
            assert handle.tell() == data, "NumPy leaves room for the first axis to grow"

    entries = [write_file(folder, "tokens/token.npy", PART, write_tokens)]
    for name, column in columns.items():
        held = np.frombuffer(column, dtype=column.typecode)
        entries.append(write_file(folder, f"tokens/{name}.npy", PART, lambda path, a=held: write_array(path, a)))
    return entries


def open_stream(folder: Path, strings: Any) -> Passages:
    """The stream, memory-mapped, with the texts of the vocabulary.

    Raises:
        IndexFault: a file is missing or cut short.
    """
    token = map_array(folder, "tokens/token.npy", shape=(None,), dtype=np.int32)
    start = map_array(folder, "tokens/start.npy", shape=(None,), dtype=np.int64)
    n = len(start) - 1
    rest = {
        name: map_array(folder, f"tokens/{name}.npy", shape=(n,), dtype=np.dtype(code))
        for name, code in _COLUMNS.items()
        if name != "start"
    }
    return Passages(token=token, start=start, strings=strings, **rest)


def _header(handle: Any, n: int) -> None:
    about = {"descr": "<i4", "fortran_order": False, "shape": (n,)}
    np.lib.format.write_array_header_1_0(handle, about)

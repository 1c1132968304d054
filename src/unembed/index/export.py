"""Export the texts on which memories (FFN neurons) fire most to one file: Parquet, JSON lines or CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from unembed.errors import InvalidInput, UnembedError
from unembed.index.index_files import IndexFiles
from unembed.results import check_writable, whole_file
from unembed.validation import positive_int

FORMATS = ("parquet", "jsonl", "csv")
_ROWS_OF_KEYS = 512


def export(files: IndexFiles, path: Path, kind: str, *, layer: int | None, context: int | None) -> int:
    """Write one row for each stored text and coefficient, and return the number of rows; see `Index.export`."""
    if kind not in FORMATS:
        raise InvalidInput(f"export as {kind!r}", why=f"the formats are {', '.join(FORMATS)}")
    target = check_writable(path)
    if context is not None:
        context = positive_int("context", context, 0)
    try:
        with whole_file(target) as temporary:
            return _WRITERS[kind](temporary, _tables(files, layer, context))
    except OSError as error:
        raise UnembedError(
            f"cannot write {target}", why=error.strerror or str(error), instead="Make room, or choose another place"
        ) from error


def _tables(files: IndexFiles, layer: int | None, context: int | None) -> Iterator[dict[str, list[Any]]]:
    """Yield the rows as dicts of columns; each has up to 512 memories at one sign of the coefficient."""
    first, last = (0, files.n_keys)
    if layer is not None:
        layer = files.memory(layer, 0)[0]
        first, last = int(files.bounds[layer]), int(files.bounds[layer + 1])
    for start in range(first, last, _ROWS_OF_KEYS):
        keys = slice(start, min(start + _ROWS_OF_KEYS, last))
        for pole, (coefficient, position) in files.trigger_lists.items():
            at = np.asarray(position[keys])
            rows, ranks = np.nonzero(at >= 0)
            columns: dict[str, list[Any]] = dict(files.memory_columns(rows + start))
            columns |= {"pole": [pole] * len(rows), "rank": (ranks + 1).tolist()}
            columns["coefficient"] = np.asarray(coefficient[keys])[rows, ranks].tolist()
            yield columns | files.passages.place_columns(at[rows, ranks], context)


def _parquet(path: Path, tables: Iterator[dict[str, list[Any]]]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole, text = pa.int32(), pa.string()
    schema = pa.schema(
        {"layer": whole, "index": whole, "pole": text, "rank": whole, "coefficient": pa.float32()}
        | {"document": whole, "sentence": whole, "position": pa.int64()}
        | {"prefix": text, "token": text, "next_token": text}
    )
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for columns in tables:
            writer.write_table(pa.table(columns, schema=schema))
            count += len(columns["rank"])
    return count


def _jsonl(path: Path, tables: Iterator[dict[str, list[Any]]]) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="") as handle:
        for columns in tables:
            for cells in zip(*columns.values(), strict=True):
                handle.write(json.dumps(dict(zip(columns, cells, strict=True)), ensure_ascii=False) + "\n")
                count += 1
    return count


def _csv(path: Path, tables: Iterator[dict[str, list[Any]]]) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        for number, columns in enumerate(tables):
            if number == 0:
                writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
            count += len(columns["rank"])
    return count


_WRITERS = {"parquet": _parquet, "jsonl": _jsonl, "csv": _csv}

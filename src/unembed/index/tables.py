"""The contents of an index as Parquet tables, for SQL, pandas and polars.

| table | one row | columns |
|---|---|---|
| `triggers` | a trigger of a memory | layer, index, pole, rank, coefficient, and columns for its place and tokens |
| `values` | a top token of a value vector | layer, index, rank, token_id, score |
| `statistics` | a memory | layer, index, and one column for each statistic |
| `vocabulary` | a token | token_id, token |
| `documents` | a document | document, name, start |

Ranks count from 1; layers, memories, documents and positions count from 0.

`triggers` gives the place of a trigger by document, sentence and position (in the document), and its tokens by token_id
(on which the memory fires) and next_token_id. `documents.start` plus `triggers.position` is the position in the token
stream, as in the arrays.

`statistics` describes a memory's coefficient over the corpus: mean, variance, least, largest, active and
active_fraction. These last two are the number and the share of positions where the memory fires: where the coefficient
is above 0; in gated layers, where its size is at least half of its root mean square over the first 2,048 tokens. The
columns positive_share and negative_share are the same share for each sign; value_norm is the value vector's length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from unembed.index.arrow_columns import numbers, texts
from unembed.index.passages import Passages

NAMES = ("triggers", "values", "statistics", "vocabulary", "documents")
_ROWS = 1 << 19


def key_columns(layers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the layer and the index of every memory (FFN neuron), sorted by layer and index."""
    layer = np.repeat(np.arange(len(layers), dtype=np.int16), layers)
    index = np.concatenate([np.arange(n, dtype=np.int32) for n in layers]) if layers else np.zeros(0, np.int32)
    return layer, index


def write_triggers(
    path: Path, poles: Mapping[str, tuple[np.ndarray, np.ndarray]], layers: Sequence[int], passages: Passages
) -> None:
    """Write the table of triggers, sorted by layer, index, pole and rank.

    Args:
        poles: by sign of the coefficient, the coefficients and positions, both (keys, t).
        layers: number of memories (FFN neurons) of each layer.
    """
    layer, index = key_columns(layers)
    per_key = sum(coefficient.shape[1] for coefficient, _ in poles.values())
    _write(
        path,
        (
            _trigger_rows(poles, layer[rows], index[rows], rows, passages)
            for rows in _chunks(len(layer), max(1, _ROWS // max(1, per_key)))
        ),
    )


def _trigger_rows(
    poles: Mapping[str, tuple[np.ndarray, np.ndarray]],
    layer: np.ndarray,
    index: np.ndarray,
    rows: slice,
    passages: Passages,
) -> pa.Table:
    parts = []
    for pole, (coefficient, position) in poles.items():
        m, at = np.asarray(coefficient[rows]), np.asarray(position[rows])
        keys, t = at.shape
        parts.append(
            {
                "key": np.repeat(np.arange(keys), t),
                "pole": np.full(keys * t, list(poles).index(pole), np.int8),
                "rank": np.tile(np.arange(1, t + 1, dtype=np.int16), keys),
                "coefficient": m.reshape(-1),
                "at": at.reshape(-1),
            }
        )
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.lexsort((joined["rank"], joined["pole"], joined["key"]))
    joined = {name: column[order][joined["at"][order] >= 0] for name, column in joined.items()}
    at, key = joined["at"], joined["key"]
    segment = passages.segment(at)
    whole = pa.int32() if len(passages.token) <= np.iinfo(np.int32).max else pa.int64()
    following = passages.next_tokens(at)
    names = texts(list(poles))
    return pa.table(
        {
            "layer": numbers(layer[key], pa.int16()),
            "index": numbers(index[key], pa.int32()),
            "pole": pa.DictionaryArray.from_arrays(numbers(joined["pole"]), names),
            "rank": numbers(joined["rank"], pa.int16()),
            "coefficient": numbers(joined["coefficient"], pa.float32()),
            "document": numbers(np.asarray(passages.document)[segment], pa.int32()),
            "sentence": numbers(np.asarray(passages.sentence)[segment], pa.int32()),
            "position": numbers(at - np.asarray(passages.origin)[segment], whole),
            "token_id": numbers(np.asarray(passages.token)[at], pa.int32()),
            "next_token_id": numbers(following, pa.int32(), missing=following < 0),
        }
    )


def write_values(path: Path, token: np.ndarray, score: np.ndarray, layers: Sequence[int]) -> None:
    """Write the table of value vectors' top tokens, sorted by layer, index and rank; token and score are (keys, k)."""
    layer, index = key_columns(layers)
    k = token.shape[1]

    def rows_of(rows: slice) -> pa.Table:
        n = len(layer[rows])
        return pa.table(
            {
                "layer": numbers(np.repeat(layer[rows], k), pa.int16()),
                "index": numbers(np.repeat(index[rows], k), pa.int32()),
                "rank": numbers(np.tile(np.arange(1, k + 1, dtype=np.int16), n), pa.int16()),
                "token_id": numbers(np.asarray(token[rows]).reshape(-1), pa.int32()),
                "score": numbers(np.asarray(score[rows]).reshape(-1), pa.float32()),
            }
        )

    _write(path, (rows_of(rows) for rows in _chunks(len(layer), max(1, _ROWS // k))))


def write_statistics(path: Path, columns: Mapping[str, np.ndarray], layers: Sequence[int]) -> None:
    """Write the table of statistics: one row for each memory (FFN neuron), one column for each (keys,) array."""
    layer, index = key_columns(layers)
    table = {"layer": numbers(layer, pa.int16()), "index": numbers(index, pa.int32())}
    _write(path, iter([pa.table(table | {name: numbers(np.asarray(column)) for name, column in columns.items()})]))


def write_vocabulary(path: Path, strings: Sequence[str]) -> None:
    """Write the text of every token."""
    ids = numbers(np.arange(len(strings), dtype=np.int32))
    # Some tokenizers use lone surrogates to represent bytes, but Parquet can store only valid UTF-8.
    spelled = [text.encode("utf-8", "backslashreplace").decode() for text in strings]
    _write(path, iter([pa.table({"token_id": ids, "token": texts(spelled)})]))


def write_documents(path: Path, names: Sequence[str], document: np.ndarray, origin: np.ndarray) -> None:
    """Write the name of every document and the position at which it starts.

    Args:
        document: the document of each segment.
        origin: the position at which the document of each segment starts.
    """
    document_ids = numbers(np.arange(len(names), dtype=np.int32))
    start = np.full(len(names), -1, dtype=np.int64)
    start[np.asarray(document)] = np.asarray(origin)
    starts = numbers(start, missing=start < 0)
    _write(path, iter([pa.table({"document": document_ids, "name": texts(names), "start": starts})]))


def column_names(path: Path) -> list[str]:
    """Return the names of a table's columns."""
    with pq.ParquetFile(path) as file:
        return list(file.schema_arrow.names)


def read_column(path: Path, name: str) -> list[Any]:
    """Return one column of a table as Python values."""
    # pq.read_table and to_numpy are not used, because they import pandas (0.4 s).
    with pq.ParquetFile(path) as file:
        return file.read(columns=[name]).column(name).to_pylist()


def _chunks(n: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, n)) for start in range(0, max(n, 1), step))


def _write(path: Path, parts: Iterator[pa.Table]) -> None:
    first = next(parts)
    # Integers are packed into as few bits as their range needs. Floats look nearly random, so their bytes are stored in
    # separate streams.
    packed = {field.name: "DELTA_BINARY_PACKED" for field in first.schema if pa.types.is_integer(field.type)}
    split = {field.name: "BYTE_STREAM_SPLIT" for field in first.schema if pa.types.is_floating(field.type)}
    words: Any = [field.name for field in first.schema if field.name not in packed | split]
    encodings: Any = packed | split
    with pq.ParquetWriter(
        path, first.schema, compression="zstd", compression_level=9, use_dictionary=words, column_encoding=encodings
    ) as writer:
        writer.write_table(first)
        for part in parts:
            writer.write_table(part)

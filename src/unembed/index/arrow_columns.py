"""Make Arrow columns from arrays and text without `pa.array`, which would import pandas (0.3 s)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def numbers(values: np.ndarray, kind: pa.DataType | None = None, *, missing: np.ndarray | None = None) -> pa.Array:
    """Convert an array of numbers to an Arrow column.

    Args:
        values: (rows,) numbers.
        kind: the type of the column, which must be able to represent the numbers; the array's type when None.
        missing: (rows,) booleans, True where the column is null; no value is null when None.
    """
    column: pa.DataType = pa.from_numpy_dtype(values.dtype) if kind is None else kind
    data = np.ascontiguousarray(values, column.to_pandas_dtype())
    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(column, len(data), [valid, pa.py_buffer(data)])


def texts(values: Sequence[str]) -> pa.Array:
    """Convert strings to an Arrow column; they must not contain lone surrogates."""
    encoded = [text.encode() for text in values]
    ends = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=ends[1:])
    return pa.Array.from_buffers(pa.string(), len(encoded), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])

"""Columns of Arrow made without pandas, beside those that pyarrow makes itself."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from unembed.index.arrow_columns import numbers, texts


@pytest.mark.parametrize("n", [0, 1, 8, 9, 1000])
@pytest.mark.parametrize("kind", [pa.int16(), pa.int32(), pa.int64(), pa.float32()])
def test_numbers_are_the_column_that_pyarrow_makes(n: int, kind: pa.DataType) -> None:
    values = np.random.default_rng(n).integers(-100, 100, n)
    assert numbers(values, kind).equals(pa.array(values, kind))
    assert numbers(values[::2], kind).equals(pa.array(values[::2], kind))  # not contiguous
    assert numbers(values).equals(pa.array(values))


@pytest.mark.parametrize("n", [0, 1, 8, 9, 1000])
def test_missing_numbers_are_null(n: int) -> None:
    values = np.random.default_rng(n).integers(-3, 3, n)
    found = numbers(values, pa.int32(), missing=values < 0)
    found.validate(full=True)
    assert found.to_pylist() == [int(value) if value >= 0 else None for value in values]


def test_texts_come_back_as_they_were() -> None:
    given = ["", " the", "naïve", "中文", "\0", "👋🏽", "a" * 5000]
    found = texts(given)
    found.validate(full=True)
    assert found.to_pylist() == given and found.type == pa.string()
    assert texts([]).to_pylist() == []
    with pytest.raises(UnicodeEncodeError):
        texts(["\ud800"])


def test_pandas_is_not_imported() -> None:
    code = """
import sys, numpy as np
from unembed.index.arrow_columns import numbers, texts
numbers(np.arange(3), missing=np.arange(3) < 1), texts(["a"])
assert "pandas" not in sys.modules
import pyarrow
pyarrow.array([1])
assert "pandas" in sys.modules  # otherwise this module is no longer needed
"""
    subprocess.run([sys.executable, "-c", code], check=True)
